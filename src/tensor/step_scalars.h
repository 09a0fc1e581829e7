// Holds what a step's update depends on as a whole: one op on the device writes it, others and the host read it.
#pragma once

#include "tensor/view.h"

namespace snug {

// Lie in memory as three fp32 numbers, one after the other.
struct StepScalars {
  float norm = 0;    // of the gradients of all trained parameters, before clipping
  float factor = 1;  // by which gradients are multiplied
  float finite = 1;  // 0 if the norm or the loss is not: nothing is updated then
};
inline constexpr int64_t kStepScalars = sizeof(StepScalars) / sizeof(float);

// Returns a view of kStepScalars fp32 numbers as StepScalars.
inline StepScalars* step_scalars(const TensorView& view) {
  check(view.count() == kStepScalars, "{} step scalars, expected {}", view.count(), kStepScalars);
  return reinterpret_cast<StepScalars*>(view.as<float>());
}

}  // namespace snug
