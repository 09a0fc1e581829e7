// The numbers that codes of few bits stand for, in increasing order; those of 4 and 8 bits are bitsandbytes' own.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace snug {

// NF4: quantiles of the normal distribution (Dettmers et al., arXiv:2305.14314, appendix E).
inline constexpr std::array<float, 16> kNf4Codebook{
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// Dynamic 8 bits (Dettmers, arXiv:1511.04561), signed: 0, 1, and for each power 10^-6 ... 10^0 twice as many numbers
// as for the one before, +- the middles of equal parts of [0.1, 1] times the power. There is a 1 and no -1. Rounded as
// torch.linspace does with AVX2 or AVX-512: bounds counted from the nearer end, by a fused multiply-add.
constexpr std::array<float, 256> make_dynamic_codebook() {
  std::array<float, 256> book{};
  constexpr std::array<float, 7> kPowers{1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  constexpr size_t kZero = 127;
  size_t place = kZero;
  for (size_t e = 0; e < kPowers.size(); e++) {
    const int parts = 1 << e;
    const double low = 0.1f, step = (1.0f - 0.1f) / static_cast<float>(parts);  // sums and products are exact in double
    const auto bound = [&](int i) {
      return static_cast<float>(i < (parts + 1) / 2 ? low + step * i : 1.0 - step * (parts - i));
    };
    for (int i = 0; i < parts; i++) {
      const float value = kPowers[e] * ((bound(i) + bound(i + 1)) / 2.0f);
      place++;
      book[place] = value;
      book[2 * kZero - place] = -value;
    }
  }
  book[255] = 1.0f;
  return book;
}
inline constexpr std::array<float, 256> kDynamicCodebook = make_dynamic_codebook();

// Between neighbours of a codebook: a number's code is how many of these lie below it, so that a tie goes down.
template <size_t N>
constexpr std::array<float, N - 1> middles(const std::array<float, N>& book) {
  std::array<float, N - 1> result{};
  for (size_t i = 0; i + 1 < N; i++) result[i] = (book[i] + book[i + 1]) / 2.0f;
  return result;
}

// FP8 e4m3fn (Micikevicius et al., arXiv:2209.05433): bias 7, no infinity, NaN 0x7f and 0xff, largest 448.
inline constexpr float kFp8Largest = 448.0f;

// To nearest, ties to even, saturating (infinity too); NaN stays.
constexpr uint8_t fp8_from_float(float x) {
  constexpr uint32_t kLeastNormal = std::bit_cast<uint32_t>(0x1p-6f), kNaN = 0x7fu;
  constexpr uint32_t kInfinity = std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
  constexpr float kUnits = 0x1p14f;  // added, it leaves multiples of 2^-9, the unit of subnormals, in the last bits
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t bounded = std::min(magnitude, std::bit_cast<uint32_t>(kFp8Largest));
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(bounded) + kUnits) & 0xfu;
  const uint32_t normal = ((bounded + 0x7ffffu + ((bounded >> 20) & 1u)) >> 20) - (120u << 3);
  const uint32_t code = magnitude > kInfinity ? kNaN : bounded < kLeastNormal ? small : normal;
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80u));
}

constexpr float float_from_fp8(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;  // exact for subnormals too
  const uint32_t nan = magnitude == 0x7fu ? 0x7fc00000u : 0u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | nan | static_cast<uint32_t>(code & 0x80u) << 24);
}

}  // namespace snug
