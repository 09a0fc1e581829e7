// Hashes that tell one thing from another, the same on every machine (XXH3, 64 bits).
#pragma once

#include <fmt/format.h>
#include <xxhash.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace snug {

// `before`: the hash of what comes before.
template <typename T>
uint64_t hash_of(std::span<const T> values, uint64_t before = 0) {
  return XXH3_64bits_withSeed(values.data(), values.size_bytes(), before);
}
inline uint64_t hash_of(std::string_view text) { return hash_of(std::span(text.data(), text.size())); }

// As files and messages show one: sixteen digits.
inline std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace snug
