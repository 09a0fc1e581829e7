// AdamW's step, the rounding of its state and dropout, in plain words.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "program/ops.h"

namespace snug::ref {

// The bf16 nearest to an fp32 number (ties away from zero) and how many of its last 16 bits' units are left.
inline void split(double x, double& hi, double& lo) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  const bool finite = std::isfinite(static_cast<float>(x));
  const uint32_t upper = finite ? (bits + 0x8000u) >> 16 : bits >> 16;
  hi = static_cast<double>(std::bit_cast<float>(upper << 16));
  lo = finite ? static_cast<double>(static_cast<int32_t>(bits - (upper << 16))) : 0;
}

inline double join(double hi, double lo) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(hi));
  return static_cast<double>(std::bit_cast<float>(bits + static_cast<uint32_t>(static_cast<int32_t>(lo))));
}

// One step of one element; m and v are brought forward. In T's own arithmetic, in torch.optim.AdamW's order: with float
// every rounding is torch's, as it is the op's.
template <class T>
T adamw_step(const AdamW& op, const RuntimeScalars& runtime, T w, T g, T& m, T& v) {
  const auto rounded = [](double x) { return static_cast<T>(x); };
  const auto step = static_cast<double>(runtime.step);
  const T share = rounded(1 - op.beta1);
  m = share < T(0.5) ? std::fma(share, g - m, m) : std::fma(share - T(1), g - m, g);  // torch.lerp
  v = std::fma(rounded(1 - op.beta2) * g, g, v * rounded(op.beta2));
  const T root = std::sqrt(v) / rounded(std::sqrt(1 - std::pow(op.beta2, step))) + rounded(op.epsilon);
  return w * rounded(1 - runtime.learning_rate * op.weight_decay) +
         rounded(-runtime.learning_rate / (1 - std::pow(op.beta1, step))) * m / root;
}

// One step of Lion of one element, as its authors' code has it; m is brought forward.
inline double lion_step(const Lion& op, const RuntimeScalars& runtime, double w, double g, double& m) {
  const double blend = op.beta1 * m + (1 - op.beta1) * g;
  m = op.beta2 * m + (1 - op.beta2) * g;
  const double sign = blend > 0 ? 1 : blend < 0 ? -1 : 0;
  return w * (1 - runtime.learning_rate * op.weight_decay) - runtime.learning_rate * sign;
}

// One step of Muon's momentum of one element: m is brought forward, and the direction returned.
inline double momentum_step(const Momentum& op, double g, double& m) {
  m = op.beta * m + (1 - op.beta) * g;
  return op.beta * m + (1 - op.beta) * g;
}

// One step of schedule-free AdamW of one element, by z as its authors have it; d = z - y and v are brought forward.
inline double schedule_free_step(const ScheduleFreeAdamW& op, const RuntimeScalars& runtime, double y, double g,
                                 double& d, double& v) {
  const double lr = runtime.learning_rate, c = runtime.average_share, z = y + d;
  v = op.beta2 * v + (1 - op.beta2) * g * g;
  const double corrected = v / (1 - std::pow(op.beta2, static_cast<double>(runtime.step)));
  const double change = g / (std::sqrt(corrected) + op.epsilon) + op.weight_decay * y;
  const double next = (1 - c) * y + c * z + lr * (op.beta1 * (1 - c) - 1) * change;
  d = z - lr * change - next;
  return next;
}

// The two bf16 numbers next to x are chosen by where x lies between them: with `random` of 65536 equal chances.
inline double stochastic_bf16(float x, uint32_t random) {
  if (!std::isfinite(x)) return static_cast<double>(x);
  const uint32_t towards_zero = std::bit_cast<uint32_t>(x) & 0xffff0000u, rest = std::bit_cast<uint32_t>(x) & 0xffffu;
  return static_cast<double>(std::bit_cast<float>(rest >= 65536 - random ? towards_zero + 0x10000u : towards_zero));
}

// bitsandbytes' create_dynamic_map. Its torch.linspace rounds start + step i once.
inline std::vector<double> dynamic_map(bool with_negatives) {
  std::vector<double> map{0, 1};
  for (int decade = 0; decade < 7; decade++) {
    const int n = 1 << (with_negatives ? decade : decade + 1);
    const float step = (1.0f - 0.1f) / static_cast<float>(n);
    std::vector<float> ends;
    for (int i = 0; i <= n; i++)
      ends.push_back(i < (n + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                     : std::fma(-step, static_cast<float>(n - i), 1.0f));
    for (int i = 0; i < n; i++) {
      const float middle = (ends[static_cast<size_t>(i)] + ends[static_cast<size_t>(i) + 1]) / 2;
      const auto value = static_cast<double>(static_cast<float>(std::pow(10.0, decade - 6)) * middle);
      map.push_back(value);
      if (with_negatives) map.push_back(-value);
    }
  }
  std::ranges::sort(map);
  return map;
}

// With 8-bit state: m and v as codes' numbers and their scales, brought forward; every product, fused multiply-add and
// inverse rounded to fp32.
inline float adamw_step_bit8(const AdamW& op, const RuntimeScalars& runtime, float w, float g, float factor, float& m,
                             float m_scale, float& v, float v_scale) {
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const auto step = static_cast<double>(runtime.step);
  const double rate = -runtime.learning_rate / (1 - std::pow(op.beta1, step));
  m = std::fma(m, m_scale * rounded(op.beta1), g * (factor * rounded(1 - op.beta1)));
  const float change = g * (factor * rounded(std::sqrt(1 - op.beta2)));
  v = std::fma(change, change, std::fma(v, v_scale * rounded(op.beta2), 0x1p-100f));
  const float root = std::fma(std::sqrt(v), rounded(1 / (std::sqrt(1 - std::pow(op.beta2, step)) * rate)),
                              op.epsilon > 0 ? rounded(op.epsilon / rate) : 0);
  return std::fma(m, 1.0f / root, w * rounded(1 - runtime.learning_rate * op.weight_decay));
}

// The code of a magnitude in [0, 1] among map's `from` to `to`. `raised`, which is 2^-24 more, lies between two
// neighbours of 10 significant bits; the number of the map nearest to their middle, less 2^-24.
inline double nearest_code(const std::vector<double>& map, size_t from, size_t to, float raised) {
  raised = raised < 1 ? std::max(raised, 0x1p-24f) : 1;  // NaN counts as 1
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(raised), &exponent);
  const double middle = std::ldexp(std::floor(fraction * 1024) + 0.5, exponent - 10) - 0x1p-24;
  const auto further = [&](double a, double b) { return std::abs(a - middle) < std::abs(b - middle); };
  const auto at = [&](size_t i) { return map.begin() + static_cast<std::ptrdiff_t>(i); };
  return static_cast<double>(std::min_element(at(from), at(to + 1), further) - map.begin());
}

}  // namespace snug::ref
