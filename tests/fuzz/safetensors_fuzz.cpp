// Headers of safetensors files: anything but a UserError or a parsed header is a fault.
#include <cstdint>

#include "base/error.h"
#include "format/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    // The first byte is the size of the data behind the header, so that small offsets are in reach.
    const uint64_t data_bytes = size > 0 ? data[0] : 0;
    const std::string_view json(reinterpret_cast<const char*>(data) + (size > 0), size - (size > 0));
    snug::parse_safetensors_header(json, json.size(), json.size() + data_bytes, "fuzz");
  } catch (const snug::UserError&) {
  }
  return 0;
}
