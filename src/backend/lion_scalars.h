// Computes the scalars that all elements of a Lion step share.
#pragma once

#include "program/ops.h"

namespace snug {

// Holds the scalars of one step, computed in fp64 and rounded once.
struct LionScalars {
  LionScalars(const Lion& lion, const RuntimeScalars& runtime) {
    const double step = runtime.learning_rate * lion.rate;
    keep = static_cast<float>(1 - step * lion.weight_decay);
    rate = static_cast<float>(step);
    blend_keep = static_cast<float>(lion.beta1);
    blend_share = static_cast<float>(1 - lion.beta1);
    mean_keep = static_cast<float>(lion.beta2);
    mean_share = static_cast<float>(1 - lion.beta2);
  }
  float keep, rate, blend_keep, blend_share, mean_keep, mean_share;
};

}  // namespace snug
