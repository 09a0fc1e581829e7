// What AdaptedGemm and AdapterBackward are made of: plain products, and what clears and adds (op_call.h).
#pragma once

#include "program/op_call.h"

namespace snug {

// d = u v in the columns of the parts, 0 in all others; AdaptedGemm says what u and v are. InternalError if they do not
// fit the parts; where b is not transposed there are none.
template <class View>
std::vector<OpCall<View>> adapter_products(bool transpose_b, const AdaptedParts& parts, const View& u, const View& v,
                                           const View& d);

// Of the op, without scratch. What comes through the adapter is written first, then the product with the weight adds
// to that, then c is added: a fresh adapter gives less than half of what c and most products are rounded to, and would
// leave no trace in a number that has been rounded already. cuBLASLt rounds a product before it adds to a matrix in
// bf16: there the adapter's part is as faint beside the product, and c takes nothing from it.
inline size_t operand_count(const AdaptedGemm& op) { return 5u + op.addend + op.bias; }
inline size_t operand_count(const AdapterBackward&) { return 5; }

// `operands`: the op's, with scratch or without.
template <class View>
std::vector<OpCall<View>> ops_of(const AdaptedGemm& op, std::span<const View> operands);
template <class View>
std::vector<OpCall<View>> ops_of(const AdapterBackward& op, std::span<const View> operands);

}  // namespace snug
