// Emits RMSNorm and LayerNorm, and their gradients.
#pragma once

#include "model/builder.h"

namespace snug {

// Returns whether any of a norm's parameters is trained.
bool trains(const Builder& b, const Norm& norm);

// Returns the shape of what a norm keeps of so many rows or heads for its backward: RMSNorm keeps their factors,
// LayerNorm their means too.
Shape moments_shape(const Norm& norm, int64_t rows);

// Emits the norm of x into y, and the moments of its rows or heads.
void norm_forward(Builder& b, std::string_view what, const Norm& norm, const Operand& x, const Operand& y,
                  const Operand& moments);

// Says whether a norm's gradient is added to dx and whether x is restored, as the op's attributes do.
struct NormBackward {
  bool accumulate = false, restore = false;
};
// Emits the gradient: dy and dx as the attributes have them, and gradients of gain and bias where they are trained.
void norm_backward(Builder& b, NormBackward attributes, const Norm& norm, const Operand& dy, const Operand& x,
                   const Operand& moments, const Operand& dx);

}  // namespace snug
