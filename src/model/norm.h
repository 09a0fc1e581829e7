// Emits norms and their gradients.
#pragma once

#include "model/builder.h"

namespace snug {

// Emits the norm of x into y, and the factors of its rows or heads into rstd.
void norm_forward(Builder& b, std::string_view what, const Norm& norm, const Operand& x, const Operand& y,
                  const Operand& rstd);
// Emits an op with these operands and, where the gain is trained, the gain's gradient behind them.
void norm_backward(Builder& b, RmsNormBackward op, const Norm& norm, std::vector<Operand> operands);

}  // namespace snug
