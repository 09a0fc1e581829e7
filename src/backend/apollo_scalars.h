// Computes the scalars that all elements of APOLLO's ops share, in fp64 and rounded once.
#pragma once

#include <cmath>

#include "program/ops.h"

namespace snug {

struct ProjectedMomentsScalars {
  explicit ProjectedMomentsScalars(const ProjectedMoments& moments)
      : keep1(static_cast<float>(moments.beta1)),
        share1(static_cast<float>(1 - moments.beta1)),
        keep2(static_cast<float>(moments.beta2)),
        share2(static_cast<float>(1 - moments.beta2)),
        epsilon(static_cast<float>(moments.epsilon)) {}
  float keep1, share1, keep2, share2, epsilon;
};

inline constexpr float kLeastProjection = 1e-8f;  // what is added to a norm before it divides
inline constexpr float kMostGrowth = 1.01f;       // of an update's norm in a step

// Returns what updates are multiplied by before their growth is limited.
inline float update_scale(const GrowthLimit& limit, const RuntimeScalars& runtime) {
  const auto step = static_cast<double>(runtime.step);
  return static_cast<float>(std::sqrt(limit.scale * (1 - std::pow(limit.beta2, step))) /
                            (1 - std::pow(limit.beta1, step)));
}

}  // namespace snug
