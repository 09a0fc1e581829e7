// safetensors files and model.safetensors.index.json: anything but a UserError or a parsed header or index is a fault.
#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "format/load.h"
#include "format/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    snug::parse_safetensors_index(bytes, "fuzz");
  } catch (const snug::UserError&) {
  }
  if (size < 8) return 0;
  // A length beyond the end is cut, so that a byte more or less does not hide the header.
  const uint64_t length = std::min<uint64_t>(snug::load<uint64_t>(std::as_bytes(std::span(data, 8)).data()), size - 8);
  try {
    snug::parse_safetensors_header(bytes.substr(8, length), 8 + length, size, "fuzz");
  } catch (const snug::UserError&) {
  }
  return 0;
}
