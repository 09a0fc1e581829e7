// Linears quantised by bitsandbytes: the state of one alone, and files with all that belongs to them. Anything but a
// UserError or a place within the file is a fault.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "format/bnb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    snug::parse_nf4_state({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const snug::UserError&) {
  }
  static const int file = memfd_create("fuzz", 0);
  if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  try {
    const auto index = snug::SafetensorsIndex::open_file(fmt::format("/proc/self/fd/{}", file));
    for (const snug::SafetensorsEntry& entry : index.entries()) {
      if (!entry.name.ends_with("weight")) continue;
      try {
        const auto stored = snug::find_stored_weight(index, entry.name, {32, 80}, "fuzz");
        for (const auto* part : {stored.weight, stored.scales, stored.block_scales})
          if (part && part->offset + part->bytes > size) std::abort();
      } catch (const snug::UserError&) {
      }
    }
  } catch (const snug::UserError&) {
  }
  return 0;
}
