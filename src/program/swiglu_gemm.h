// Defines SwiGluGemm and SwiGluGemmBackward by plain ops: the linear's product and SwiGLU's own op (op_call.h).
#pragma once

#include "program/op_call.h"

namespace snug {

// Count an op's operands without scratch and, of these, the factors of its linear, which stand before gate_up.
inline size_t factor_count(const SwiGluGemm& op) { return op.parts.count() > 0 ? 4 : 2; }
inline size_t factor_count(const SwiGluGemmBackward& op) { return op.adapted ? 4 : 2; }
inline size_t operand_count(const SwiGluGemm& op) { return factor_count(op) + 1 + op.result; }
inline size_t operand_count(const SwiGluGemmBackward& op) { return factor_count(op) + 3; }

// Returns the ops of which the composite op is made. `operands` are the composite op's, with or without scratch.
template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluGemm& op, std::span<const View> operands);
template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluGemmBackward& op, std::span<const View> operands);

// Returns the number of columns of u, which the product sums over beside x's; 0 without an adapter.
template <class Kind, class View>
int64_t adapter_columns(const Kind& op, std::span<const View> operands) {
  return factor_count(op) > 2 ? operands[2].shape.cols() : 0;
}

}  // namespace snug
