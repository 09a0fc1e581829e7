// Computes the scalars that all elements of a step of schedule-free AdamW share.
#pragma once

#include <cmath>

#include "program/ops.h"

namespace snug {

// Holds the scalars of one step, computed in fp64 and rounded once.
struct ScheduleFreeScalars {
  ScheduleFreeScalars(const ScheduleFreeAdamW& adamw, const RuntimeScalars& runtime) {
    const double lr = runtime.learning_rate * adamw.rate, kept = 1 - runtime.average_share;
    square_keep = static_cast<float>(adamw.beta2);
    square_share = static_cast<float>(1 - adamw.beta2);
    root_correction = static_cast<float>(std::sqrt(1 - std::pow(adamw.beta2, static_cast<double>(runtime.step))));
    epsilon = static_cast<float>(adamw.epsilon);
    decay = static_cast<float>(adamw.weight_decay);
    share = static_cast<float>(runtime.average_share);
    rate = static_cast<float>(-lr * (1 - adamw.beta1 * kept));
    difference_keep = static_cast<float>(kept);
    difference_rate = static_cast<float>(-lr * adamw.beta1 * kept);
  }
  float square_keep, square_share, root_correction, epsilon, decay;
  float share, rate;                       // of z - y, and of the change, in the step of y
  float difference_keep, difference_rate;  // in that of z - y
};

// Returns what z - y is multiplied by where the average is made of y.
inline float average_factor(const ScheduleFreeAverage& average) {
  return static_cast<float>(-(1 - average.beta1) / average.beta1);
}

}  // namespace snug
