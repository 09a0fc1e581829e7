// Computes the scalars that all elements of Muon's ops share, in fp64 and rounded once.
#pragma once

#include "program/ops.h"

namespace snug {

struct MomentumScalars {
  explicit MomentumScalars(const Momentum& momentum)
      : keep(static_cast<float>(momentum.beta)), share(static_cast<float>(1 - momentum.beta)) {}
  float keep, share;
};

struct DescendScalars {
  DescendScalars(const Descend& descend, const RuntimeScalars& runtime) {
    const double step = runtime.learning_rate * descend.rate;
    keep = static_cast<float>(1 - step * descend.weight_decay);
    rate = static_cast<float>(-step);
  }
  float keep, rate;
};

inline constexpr float kLeastNorm = 1e-7f;  // by which a matrix is divided at least, as torch.optim.Muon does

}  // namespace snug
