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

// Whether cards of compute capability 9.0 have one kernel for it, as far as shapes say, for operands in bf16 of m rows
// and n columns of h: a tile has as many columns of gate as of up.
bool one_kernel(const SwiGluGemm& op, int64_t m, int64_t n, int64_t adapter_columns);
bool one_kernel(const SwiGluGemmBackward& op, int64_t m, int64_t n, int64_t adapter_columns);
template <class Kind, class View>
bool one_kernel(const Kind& op, std::span<const View> operands) {
  return one_kernel(op, operands[0].shape.rows(), operands[factor_count(op)].shape.cols() / 2,
                    adapter_columns(op, operands));
}

}  // namespace snug
