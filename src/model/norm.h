// RMSNorm.
#pragma once

#include "model/builder.h"

namespace snug {

// Emits the norm of x: y, and the factors of its rows or heads.
void norm_forward(Builder& b, std::string_view what, const Norm& norm, const Operand& x, const Operand& y,
                  const Operand& rstd);
// Emits an op whose operands these are, but for the gain's gradient, which follows where the gain is trained.
void norm_backward(Builder& b, RmsNormBackward op, const Norm& norm, std::vector<Operand> operands);

}  // namespace snug
