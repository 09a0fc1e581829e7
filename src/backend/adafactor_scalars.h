// Computes the scalars that all elements of Adafactor's ops share, in fp64 and rounded once.
#pragma once

#include <cmath>

#include "program/ops.h"

namespace snug {

struct FactoredMeansScalars {
  FactoredMeansScalars(const FactoredMeans& means, const RuntimeScalars& runtime) {
    const double before = 1 - std::pow(static_cast<double>(runtime.step), -means.decay);
    keep = static_cast<float>(before);
    share = static_cast<float>(1 - before);
    epsilon = static_cast<float>(means.epsilon);
  }
  float keep, share, epsilon;
};

}  // namespace snug
