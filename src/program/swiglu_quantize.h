// Defines SwiGluQuantize and SwiGluBackwardQuantize by plain ops: SwiGLU's own op, and Quantize of its result
// (op_call.h).
#pragma once

#include "program/op_call.h"

namespace snug {

// Count an op's operands without scratch and, of these, those that stand before the codes.
inline size_t before_codes(const SwiGluQuantize&) { return 2; }
inline size_t before_codes(const SwiGluBackwardQuantize&) { return 4; }
inline size_t operand_count(const SwiGluQuantize& op) { return before_codes(op) + 2 + op.column_scales; }
inline size_t operand_count(const SwiGluBackwardQuantize& op) { return before_codes(op) + 2 + op.column_scales; }

// Returns the ops of which the composite op is made. `operands` are the composite op's, with or without scratch.
template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluQuantize& op, std::span<const View> operands);
template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluBackwardQuantize& op, std::span<const View> operands);

}  // namespace snug
