// Writes sizes for people.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace snug {

// Returns a size for people: 17179869184 -> "16.00 GiB".
inline std::string format_size(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < (uint64_t{1} << 10)) return fmt::format("{} B", bytes);
  if (bytes < (uint64_t{1} << 20)) return fmt::format("{:.1f} KiB", value / 0x1p10);
  if (bytes < (uint64_t{1} << 30)) return fmt::format("{:.1f} MiB", value / 0x1p20);
  return fmt::format("{:.2f} GiB", value / 0x1p30);
}

}  // namespace snug
