// Reads bytes of files, and little-endian values from them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>

namespace snug {

// Fills the span with a file's bytes from an offset; only asked for bytes within the file.
using ReadAt = std::function<void(uint64_t offset, std::span<std::byte> out)>;

// Returns a value from bytes, which need not be aligned.
template <class T>
T load(const std::byte* bytes) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

}  // namespace snug
