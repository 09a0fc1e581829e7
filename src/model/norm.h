// RMSNorm.
#pragma once

#include "model/builder.h"

namespace snug {

// Emits an op whose operands these are, but for the gain's gradient, which follows where the gain is trained.
void norm_backward(Builder& b, RmsNormBackward op, ParamId gain, std::vector<Operand> operands);

}  // namespace snug
