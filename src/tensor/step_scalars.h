// What a step's update depends on as a whole: written by one op on the device, read by the others and by the host.
#pragma once

#include "tensor/view.h"

namespace snug {

// In memory three fp32 numbers, one after the other.
struct StepScalars {
  float norm = 0;    // of the gradients of all trained parameters, before clipping
  float factor = 1;  // that gradients are multiplied by
  float finite = 1;  // 0 where the norm or the loss is not: nothing is updated then
};
inline constexpr int64_t kStepScalars = sizeof(StepScalars) / sizeof(float);

// A view of kStepScalars fp32 numbers as what they are.
inline StepScalars* step_scalars(const TensorView& view) {
  check(view.count() == kStepScalars, "{} step scalars, expected {}", view.count(), kStepScalars);
  return reinterpret_cast<StepScalars*>(view.as<float>());
}

}  // namespace snug
