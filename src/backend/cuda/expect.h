// Checks operands of composite ops (program/op_call.h) before one kernel may take them all.
#pragma once

#include <span>

#include "program/program.h"

namespace snug::cuda {

// Throws InternalError unless operands, in the op's order, fit each other as those of all ops of which it is made, and
// are followed by as much scratch as facts.h says. Kind: AdaptedGemm, AdapterBackward, SwiGluGemm, SwiGluGemmBackward.
template <class Kind>
void expect_fused(const Kind& op, std::span<const TensorView> views);

}  // namespace snug::cuda
