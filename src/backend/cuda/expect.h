// What operands of ops that are made of others (program/op_call.h) must be before one kernel may take them all.
#pragma once

#include <span>

#include "program/program.h"

namespace snug::cuda {

// InternalError unless operands, in the op's order, fit each other as those of all that it is made of, and as much
// scratch as facts.h says follows them. Kind: AdaptedGemm, AdapterBackward, SwiGluGemm, SwiGluGemmBackward.
template <class Kind>
void expect_fused(const Kind& op, std::span<const TensorView> views);

}  // namespace snug::cuda
