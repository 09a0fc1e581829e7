// Defines arithmetic shared by the CPU's kernels: an exponential that vectorises, and sums in a fixed order.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "backend/gelu.h"
#include "program/ops.h"
#include "tensor/dtype.h"

namespace snug::cpu {

// Returns e^x for every float, less than 1 ulp off if the result is normal; overflow gives infinity, underflow 0, NaN
// stays. x = n ln 2 + r with |r| <= ln 2 / 2, r by two constants (Cody and Waite, "Software Manual for the Elementary
// Functions", 1980: the first has few enough bits that n times it is exact), e^r by its Taylor series to r^7 (the rest
// is below 0.05 ulp), 2^n in two factors so that neither leaves the range of exponents. It has no branch, so that loops
// vectorise.
inline float exp(float x) {
  constexpr float kRound = 0x1.8p23f;  // added and subtracted again: rounds to a whole number, kept in the low bits
  x = x > 89.0f ? 89.0f : x;           // comparisons that NaN passes through
  x = x < -104.0f ? -104.0f : x;
  const float shifted = std::fma(x, 0x1.715476p0f, kRound);
  const float n = shifted - kRound;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float r = std::fma(n, -0x1.7f7d1cp-20f, std::fma(n, -0x1.62e4p-1f, x));
  float p = 1.0f / 5040;
  p = std::fma(p, r, 1.0f / 720);
  p = std::fma(p, r, 1.0f / 120);
  p = std::fma(p, r, 1.0f / 24);
  p = std::fma(p, r, 1.0f / 6);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * first * second;
}

// Returns 1 / (1 + e^-x).
inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

// An activation (program/ops.h) and its derivative.
struct Activated {
  float value, slope;
};
template <Activation kind>
Activated activated(float x) {
  // x s, s = sigmoid(z), with z's derivative.
  const auto by_sigmoid = [x](float z, float dz) {
    const float s = sigmoid(z);
    return Activated{x * s, s * (1.0f + x * (1.0f - s) * dz)};
  };
  if constexpr (kind == Activation::Silu) return by_sigmoid(x, 1.0f);
  if constexpr (kind == Activation::GeluQuick) return by_sigmoid(kGeluQuick * x, kGeluQuick);
  if constexpr (kind == Activation::GeluTanh)
    return by_sigmoid(x * (kGeluLinear + kGeluCubic * x * x), kGeluLinear + 3.0f * kGeluCubic * x * x);
  if constexpr (kind == Activation::Gelu) {
    const float a = std::abs(x), e = exp(-0.5f * (a * a)), tail = e * normal_tail(1.0f / (1.0f + kTailScale * a));
    const float p = x < 0.0f ? tail : 1.0f - tail;
    return {x * p, p + x * (kNormalDensity * e)};
  }
  const float r = x < 0.0f ? 0.0f : x;  // NaN stays
  return {r * r, 2.0f * r};
}

// Calls f.template operator()<kind>() with an activation's kind.
template <class F>
decltype(auto) dispatch_kind(Activation activation, const F& f) {
  switch (activation) {
    case Activation::GeluTanh:
      return f.template operator()<Activation::GeluTanh>();
    case Activation::Gelu:
      return f.template operator()<Activation::Gelu>();
    case Activation::GeluQuick:
      return f.template operator()<Activation::GeluQuick>();
    case Activation::ReluSquared:
      return f.template operator()<Activation::ReluSquared>();
    case Activation::Silu:
      break;
  }
  return f.template operator()<Activation::Silu>();
}

// Within 2^-22 of 1, so that cap tanh(x / cap) is as near as fp32 has it for x of the cap's size.
inline float tanh(float x) {
  const float e = exp(-2.0f * std::abs(x));
  return std::copysign((1.0f - e) / (1.0f + e), x);
}

// An element as fp32, and fp32 as an element, to nearest even. By reference and on bits, without a branch or an object
// of the class: loops over them vectorise.
inline float to_float(const float& x) { return x; }
inline float to_float(const BFloat16& x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float to_float(const Float16& x) {
  const uint32_t abs_x = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const float rebased = std::bit_cast<float>(abs_x) * 0x1p112f;      // exact for subnormals too
  const uint32_t special = abs_x >= 0x0f800000u ? 0x7f800000u : 0u;  // infinity and NaN
  return std::bit_cast<float>(std::bit_cast<uint32_t>(rebased) | special |
                              static_cast<uint32_t>(x.bits & 0x8000u) << 16);
}
// Returns element i of an array of T that starts at any byte, as fp32.
template <class T>
float load(const std::byte* array, int64_t i) {
  T value;
  std::memcpy(&value, array + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return to_float(value);
}

inline void store(float& to, float x) { to = x; }
inline void store(BFloat16& to, float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t nearest = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  to.bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}
inline void store(Float16& to, float x) { to = Float16(x); }

// Stores fp32 as bf16, rounded stochastically: away from zero with a probability equal to its lower half as a fraction
// of a unit, where `random` is uniform in [0, 2^16). Numbers of bf16 and infinities do not change, NaN becomes quiet.
inline void store_stochastic(BFloat16& to, float x, uint32_t random) {
  const uint32_t u = std::bit_cast<uint32_t>(x), quiet = (u >> 16) | 0x40u;
  to.bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : (u + random) >> 16);
}

// Sums are taken over blocks of this many elements, each over kLanes running sums: element i goes to sum i % kLanes.
inline constexpr int64_t kSumBlock = 4096;
inline constexpr int kLanes = 32;

// Adds the lanes pairwise: l with l + 16, then with l + 8, ...
inline float add_lanes(float (&lane)[kLanes]) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; l++) lane[l] += lane[l + width];
  return lane[0];
}

// Returns term(0) + ... + term(n - 1) in fp32, in an order that n alone decides.
template <class Term>
inline float sum(int64_t n, const Term& term) {
  float total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = std::min(begin + kSumBlock, n);
    float lane[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
#pragma omp simd
      for (int l = 0; l < kLanes; l++) lane[l] += term(i + l);
    }
    for (; i < end; i++) lane[(i - begin) % kLanes] += term(i);
    total += add_lanes(lane);
  }
  return total;
}

// Returns the largest of term(0..n - 1); -infinity for none. It ignores NaN.
template <class Term>
inline float maximum(int64_t n, const Term& term) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float lane[kLanes];
  std::fill_n(lane, kLanes, kLowest);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; l++) {
      const float x = term(i + l);
      lane[l] = x > lane[l] ? x : lane[l];
    }
  }
  for (; i < n; i++) lane[i % kLanes] = std::max(lane[i % kLanes], term(i));
  return *std::max_element(lane, lane + kLanes);
}

}  // namespace snug::cpu
