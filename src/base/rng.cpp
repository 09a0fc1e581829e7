#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace snug {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
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

float Random::uniform(uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1p-24f; }

float Random::normal(uint64_t index) const {
  const uint64_t even = index & ~uint64_t{1};
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(bits(even)) + 0.5) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(bits(even + 1)) * 0x1p-32;
  return static_cast<float>(radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

uint64_t Random::below(uint64_t index, uint64_t bound) const { return (uint64_t{bits(index)} * bound) >> 32; }

}  // namespace snug
