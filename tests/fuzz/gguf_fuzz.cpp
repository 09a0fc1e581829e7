// GGUF files: anything but a UserError or a parsed header, config and tokenizer is a fault.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "format/gguf_import.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    if (offset > size || out.size() > size - offset) std::abort();
    std::memcpy(out.data(), data + offset, out.size());
  };
  try {
    const snug::GgufHeader header = snug::parse_gguf(read, size, "fuzz");
    snug::gguf_tokenizer(header);
    snug::gguf_tokenizer_config(header);
    snug::gguf_generation_config(header);
    snug::gguf_model_config(header);
  } catch (const snug::UserError&) {
  }
  return 0;
}
