// Lists the numbers that codes of few bits stand for, ascending; those of 4 and 8 bits are bitsandbytes' own.
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

// Holds one of the dynamic maps of 8 bits (Dettmers, arXiv:1511.04561 and arXiv:2110.02861): 256 numbers in [-1, 1] or
// [0, 1], closer together towards 0, ascending, with the bits of bitsandbytes' create_dynamic_map.
using DynamicMap = std::array<float, 256>;

// Makes a map of seven decades, the lowest from 1e-7 to 1e-6, each cut into twice as many equal intervals as the one
// below; its values are the intervals' middles, 0 and 1. The intervals' ends are rounded once, as a fused multiply-add
// does.
constexpr DynamicMap make_dynamic_map(bool with_negatives) {
  constexpr float kDecade[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  DynamicMap map{};
  size_t next = 0;
  map[next++] = 0;
  map[next++] = 1;
  int intervals = with_negatives ? 1 : 2;
  for (const float decade : kDecade) {
    const float width = (1.0f - 0.1f) / static_cast<float>(intervals);
    const auto end = [&](int i) {  // from the nearer side
      const double from_low = static_cast<double>(0.1f) + static_cast<double>(width) * i;
      const double from_high = 1.0 - static_cast<double>(width) * (intervals - i);
      return static_cast<float>(i < (intervals + 1) / 2 ? from_low : from_high);
    };
    for (int i = 0; i < intervals; i++) {
      const float middle = decade * ((end(i) + end(i + 1)) / 2.0f);
      map[next++] = middle;
      if (with_negatives) map[next++] = -middle;
    }
    intervals *= 2;
  }
  std::ranges::sort(map);
  return map;
}

// kSignedMap serves the second quantisation of NF4's scales as well.
inline constexpr DynamicMap kSignedMap = make_dynamic_map(true), kUnsignedMap = make_dynamic_map(false);
inline constexpr uint8_t kSignedZero = 127;  // the code of 0
static_assert(kSignedMap[kSignedZero] == 0 && kUnsignedMap[0] == 0);

// Finds a map's codes by one look-up. Magnitudes that, with 2^-24 added, agree in the exponent and the upper 9 bits of
// the fraction are a bin, whose code is the one nearest to its middle. If a number is beside the middle of two codes,
// by 2^-10 of itself at most, its code may be the further one.
struct CodeBins {
  static constexpr float kLeast = 0x1p-24f;
  static constexpr int kShift = 23 - 9;
  static constexpr uint32_t kFirst = std::bit_cast<uint32_t>(kLeast) >> kShift;
  static constexpr uint32_t kCount = (std::bit_cast<uint32_t>(1.0f) >> kShift) - kFirst + 1;
  std::array<uint8_t, kCount> codes;

  // Makes the bins of magnitudes up to `map`'s number `most`, from its number `zero` on.
  constexpr CodeBins(const DynamicMap& map, uint8_t zero, uint8_t most) : codes{} {
    uint8_t code = zero;
    for (uint32_t bin = 0; bin < kCount; bin++) {
      const auto from = static_cast<double>(std::bit_cast<float>((kFirst + bin) << kShift));
      const auto to = static_cast<double>(std::bit_cast<float>((kFirst + bin + 1) << kShift));
      const double middle = (from + to) / 2 - static_cast<double>(kLeast);
      const auto off = [&](uint8_t c) {
        const double apart = static_cast<double>(map[c]) - middle;
        return apart < 0 ? -apart : apart;
      };
      while (code < most && off(static_cast<uint8_t>(code + 1)) < off(code)) code++;
      codes[bin] = code;
    }
  }
  // Returns a magnitude that has a bin, whatever came out of a file: NaN counts as 1, negative numbers as 0.
  static constexpr float bounded(float raised) {
    if (raised < kLeast) return kLeast;
    return raised < 1.0f ? raised : 1.0f;
  }
  // Returns the code of a magnitude to which kLeast has been added.
  uint8_t of(float raised) const { return codes[(std::bit_cast<uint32_t>(bounded(raised)) >> kShift) - kFirst]; }
};

// AdamW's moments in 8 bits: code c stands for map[c] x the block's scale. m's codes are symmetric, so its largest
// number stands at code 254, the last that has a negative twin, 254 - c; v's stands at 1.
inline constexpr uint8_t kMeanMost = 254;
inline constexpr CodeBins kMeanBins{kSignedMap, kSignedZero, kMeanMost}, kSquareBins{kUnsignedMap, 0, 255};
inline constexpr float kMeanRise = 1.0f / kSignedMap[kMeanMost];  // m's scale over its largest magnitude
inline constexpr float kLeastScale = 0x1p-100f;
constexpr float state_scale(float largest, float rise) {
  const float scale = largest * rise;
  return scale > kLeastScale ? scale : kLeastScale;
}

// Returns the middles between neighbours of a codebook: a number's code is the number of middles below it, so that a
// tie goes down.
template <size_t N>
constexpr std::array<float, N - 1> middles(const std::array<float, N>& book) {
  std::array<float, N - 1> result{};
  for (size_t i = 0; i + 1 < N; i++) result[i] = (book[i] + book[i + 1]) / 2.0f;
  return result;
}

// FP8 e4m3fn (Micikevicius et al., arXiv:2209.05433): bias 7, no infinity, NaN 0x7f and 0xff, largest 448.
inline constexpr float kFp8Largest = 448.0f;

// Returns the code to nearest, ties to even, saturating (infinity too); NaN stays.
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
