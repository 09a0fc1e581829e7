// Computes the scalars that all elements of an AdamW step share.
#pragma once

#include <cmath>

#include "program/ops.h"

namespace snug {

// Holds the scalars of one step, computed in fp64 and rounded once.
struct AdamWScalars {
  AdamWScalars(const AdamW& adamw, const RuntimeScalars& runtime) {
    const double beta1 = adamw.beta1, beta2 = adamw.beta2, rate = runtime.learning_rate * adamw.rate;
    const auto step = static_cast<double>(runtime.step);
    keep = static_cast<float>(1 - rate * static_cast<double>(adamw.weight_decay));
    mean_share = static_cast<float>(1 - beta1);
    square_keep = static_cast<float>(beta2);
    square_share = static_cast<float>(1 - beta2);
    root_correction = static_cast<float>(std::sqrt(1 - std::pow(beta2, step)));
    inverse_correction = 1.0f / root_correction;
    mean_keep = static_cast<float>(beta1);
    root_of_square_share = static_cast<float>(std::sqrt(1 - beta2));
    epsilon = static_cast<float>(adamw.epsilon);
    const double mean_rate = -rate / (1 - std::pow(beta1, step));
    rate_of_mean = static_cast<float>(mean_rate);
    root_over_rate = static_cast<float>(1 / (std::sqrt(1 - std::pow(beta2, step)) * mean_rate));
    epsilon_over_rate = adamw.epsilon > 0 ? static_cast<float>(adamw.epsilon / mean_rate) : 0.0f;
  }
  float keep, mean_share, square_keep, square_share, root_correction, inverse_correction, epsilon, rate_of_mean;
  // Steps with 8-bit state, whose rounding is coarser than the effect of the order of operations, compute
  //   m = (beta1 scale) code + (share factor) g             v = (root_of_square_share factor g)^2 + (beta2 scale) code
  //   w = keep w + m / (root_over_rate sqrt(v) + epsilon_over_rate)
  // A fused multiply-add rounds once, a quotient is a product with the rounded inverse, and v has kLeastSquare added,
  // so that no root is zero. At a rate of 0 the quotients are zeros too.
  float mean_keep, root_of_square_share, root_over_rate, epsilon_over_rate;
  static constexpr float kLeastSquare = 0x1p-100f;
};

}  // namespace snug
