// Computes hashes that tell things apart, equal on every machine (XXH3, 64 bits).
#pragma once

#include <fmt/format.h>
#include <xxhash.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace snug {

// Returns the hash of values. `before` is the hash of what comes before them.
template <typename T>
uint64_t hash_of(std::span<const T> values, uint64_t before = 0) {
  return XXH3_64bits_withSeed(values.data(), values.size_bytes(), before);
}
inline uint64_t hash_of(std::string_view text) { return hash_of(std::span(text.data(), text.size())); }

// Returns a hash as files and messages show it: sixteen digits.
inline std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace snug
