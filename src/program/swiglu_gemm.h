// What SwiGluGemm and SwiGluGemmBackward are made of: the linear's product, and SwiGLU's own op (op_call.h).
#pragma once

#include "program/op_call.h"

namespace snug {

// Of the op, without scratch; and of these, the linear's factors, after which gate_up comes.
inline size_t factor_count(const SwiGluGemm& op) { return op.parts.count() > 0 ? 4 : 2; }
inline size_t factor_count(const SwiGluGemmBackward& op) { return op.adapted ? 4 : 2; }
inline size_t operand_count(const SwiGluGemm& op) { return factor_count(op) + 1 + op.result; }
inline size_t operand_count(const SwiGluGemmBackward& op) { return factor_count(op) + 3; }

// `operands`: the op's, with scratch or without.
template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluGemm& op, std::span<const View> operands);
template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluGemmBackward& op, std::span<const View> operands);

// What u has: columns that are summed over beside x's, or none.
template <class Kind, class View>
int64_t adapter_columns(const Kind& op, std::span<const View> operands) {
  return factor_count(op) > 2 ? operands[2].shape.cols() : 0;
}

}  // namespace snug
