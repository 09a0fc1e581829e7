// Values from the bytes of files, little-endian as all of them are.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace snug {

// The bytes need not be aligned.
template <class T>
T load(const std::byte* bytes) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

}  // namespace snug
