// Derivatives of activations and of the soft cap.
#pragma once

#include <cmath>
#include <numbers>

#include "ref/forward.h"

namespace snug::ref {

// The derivative of a soft cap, from the capped value.
inline double cap_slope(double y, double cap) { return cap > 0 ? 1 - y / cap * (y / cap) : 1; }

// The activation's derivative.
inline double activation_slope(Activation activation, double x) {
  const double s = 1 / (1 + std::exp(-x));
  if (activation == Activation::Silu) return s * (1 + x * (1 - s));
  if (activation == Activation::GeluQuick) {
    const double q = 1 / (1 + std::exp(-1.702 * x));
    return q * (1 + 1.702 * x * (1 - q));
  }
  if (activation == Activation::ReluSquared) return x < 0 ? 0 : 2 * x;
  if (activation == Activation::Gelu) return normal(x) + x * normal_density(x);
  const double c = std::sqrt(2 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

}  // namespace snug::ref
