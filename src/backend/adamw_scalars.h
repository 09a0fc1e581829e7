// What all elements of an AdamW step share.
#pragma once

#include <cmath>

#include "program/ops.h"

namespace snug {

// The scalars of one step, computed in fp64 and rounded once.
struct AdamWScalars {
  AdamWScalars(const AdamW& adamw, const PassFacts& facts) {
    const double beta1 = adamw.beta1, beta2 = adamw.beta2, rate = facts.learning_rate;
    const auto step = static_cast<double>(facts.step);
    keep = static_cast<float>(1 - rate * static_cast<double>(adamw.weight_decay));
    mean_share = static_cast<float>(1 - beta1);
    square_keep = static_cast<float>(beta2);
    square_share = static_cast<float>(1 - beta2);
    root_correction = static_cast<float>(std::sqrt(1 - std::pow(beta2, step)));
    epsilon = static_cast<float>(adamw.epsilon);
    rate_of_mean = static_cast<float>(-rate / (1 - std::pow(beta1, step)));
  }
  float keep, mean_share, square_keep, square_share, root_correction, epsilon, rate_of_mean;
};

}  // namespace snug
