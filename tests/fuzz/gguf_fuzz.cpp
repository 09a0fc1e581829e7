// GGUF files: anything but a UserError, or a parsed header with values, config and tokenizer is a fault. Each file is
// read as a part of a split model too, with itself as the other.
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
  for (const snug::GgufTensor& tensor : header->tensors()) {
    std::vector<std::byte> bytes(tensor.bytes);
    if (!bytes.empty()) read(tensor.offset, bytes);
    uint64_t values = 1;
    for (const int64_t size : tensor.shape) values *= static_cast<uint64_t>(size);
    std::vector<float> out(values);
    snug::dequantize(tensor.type, bytes, out);
  }
  try {
    snug::join_gguf_parts({*header, *header});
  } catch (const snug::UserError&) {
  }
  try {
    snug::gguf_unused_keys(*header);
  } catch (const snug::UserError&) {
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
