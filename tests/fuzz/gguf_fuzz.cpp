// GGUF files: anything but a UserError or a parsed header, config and tokenizer is a fault.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "format/gguf_import.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    if (offset > size || out.size() > size - offset) std::abort();
    std::memcpy(out.data(), data + offset, out.size());
  };
  std::optional<snug::GgufHeader> header;
  try {
    header = snug::parse_gguf(read, size, "fuzz");
  } catch (const snug::UserError&) {
    return 0;
  }
  for (const auto write :
       {snug::gguf_model_config, snug::gguf_generation_config, snug::gguf_tokenizer, snug::gguf_tokenizer_config}) {
    try {
      write(*header);
    } catch (const snug::UserError&) {
    }
  }
  return 0;
}
