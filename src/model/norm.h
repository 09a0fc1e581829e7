// RMSNorm and LayerNorm.
#pragma once

#include "model/builder.h"

namespace snug {

// What a norm keeps of so many rows or heads for its backward: RMSNorm their factors, LayerNorm their means too.
Shape moments_shape(const Norm& norm, int64_t rows);

// Emits the norm of x: y, and the moments of its rows or heads.
void norm_forward(Builder& b, std::string_view what, const Norm& norm, const Operand& x, const Operand& y,
                  const Operand& moments);

// What a norm's gradient is added to or written over, as attributes of the op say it.
struct NormBackward {
  bool accumulate = false, restore = false;
};
// Emits the gradient: dy and dx as the attributes have them, and gradients of gain and bias where they are trained.
void norm_backward(Builder& b, NormBackward attributes, const Norm& norm, const Operand& dy, const Operand& x,
                   const Operand& moments, const Operand& dx);

}  // namespace snug
