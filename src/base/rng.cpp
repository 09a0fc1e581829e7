#include "base/rng.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace snug {

namespace {

inline void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, const std::array<uint32_t, 2>& key) {
  const uint64_t a = uint64_t{0xD2511F53u} * c0;
  const uint64_t b = uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key[0];
  c1 = static_cast<uint32_t>(b);
  c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key[1];
  c3 = static_cast<uint32_t>(a);
}

inline void next_key(std::array<uint32_t, 2>& key) {
  key[0] += 0x9E3779B9u;
  key[1] += 0xBB67AE85u;
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++, next_key(key))
    philox_round(counter[0], counter[1], counter[2], counter[3], key);
  return counter;
}

Random::Random(uint64_t seed, RandomPurpose purpose, uint32_t stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      purpose_(static_cast<uint32_t>(purpose)),
      stream_(stream) {}

uint32_t Random::bits(uint64_t index) const {
  const uint64_t block = index / 4;
  return philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream_, purpose_}, key_)[index % 4];
}

void Random::bits(uint64_t first, std::span<uint32_t> elements) const {
  constexpr size_t kWide = 16;  // counters computed together
  for (size_t done = 0; done < elements.size();) {
    const uint64_t block = (first + done) / 4;
    uint32_t c0[kWide], c1[kWide], c2[kWide], c3[kWide];
    for (size_t i = 0; i < kWide; i++) {
      c0[i] = static_cast<uint32_t>(block + i);
      c1[i] = static_cast<uint32_t>((block + i) >> 32);
      c2[i] = stream_;
      c3[i] = purpose_;
    }
    std::array<uint32_t, 2> key = key_;
    for (int round = 0; round < 10; round++, next_key(key)) {
#pragma omp simd
      for (size_t i = 0; i < kWide; i++) philox_round(c0[i], c1[i], c2[i], c3[i], key);
    }
    uint32_t words[4 * kWide];
    for (size_t i = 0; i < kWide; i++) {
      words[4 * i] = c0[i];
      words[4 * i + 1] = c1[i];
      words[4 * i + 2] = c2[i];
      words[4 * i + 3] = c3[i];
    }
    const size_t skipped = (first + done) % 4, count = std::min(4 * kWide - skipped, elements.size() - done);
    std::memcpy(elements.data() + done, words + skipped, count * sizeof(uint32_t));
    done += count;
  }
}

float Random::uniform(uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1p-24f; }

float Random::normal(uint64_t index) const {
  const uint64_t even = index & ~uint64_t{1};
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(bits(even)) + 0.5) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(bits(even + 1)) * 0x1p-32;
  return static_cast<float>(radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

uint64_t Random::below(uint64_t index, uint64_t bound) const { return (uint64_t{bits(index)} * bound) >> 32; }

}  // namespace snug
