// Files of torch.save, and the pickle alone that they hold: anything but a UserError or tensors within the file is a
// fault.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "format/pickle.h"
#include "format/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    if (offset > size || out.size() > size - offset) std::abort();
    std::memcpy(out.data(), data + offset, out.size());
  };
  try {
    for (const snug::SafetensorsEntry& entry : snug::parse_torch_file(read, size, "fuzz"))
      if (entry.offset > size || entry.bytes > size - entry.offset) std::abort();
  } catch (const snug::UserError&) {
  }
  try {
    size_t at = 0;
    snug::read_pickle({reinterpret_cast<const char*>(data), size}, at, "fuzz");
    if (at > size) std::abort();
  } catch (const snug::UserError&) {
  }
  return 0;
}
