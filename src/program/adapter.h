// Defines AdaptedGemm and AdapterBackward by plain ops: products, fills, copies and sums (op_call.h).
#pragma once

#include "program/op_call.h"

namespace snug {

// Returns the ops for d = u v in the columns of the parts and 0 in all other columns; u and v are those of AdaptedGemm.
// Unless b is transposed there are no parts, and all of d is u v. Throws InternalError if u and v do not fit the parts.
template <class View>
std::vector<OpCall<View>> adapter_products(bool transpose_b, const AdaptedParts& parts, const View& u, const View& v,
                                           const View& d);

// Counts an op's operands without scratch. AdaptedGemm writes what comes through the adapter first, then adds the
// product with the weight, then c: what a fresh adapter gives is less than half of the unit to which c and most
// products are rounded, and would leave no trace in a number that has been rounded already. cuBLASLt rounds a product
// before it adds it to a matrix in bf16: there the adapter's part is as faint beside the product, but c takes nothing
// from it.
inline size_t operand_count(const AdaptedGemm& op) { return 5u + op.addend + op.bias; }
inline size_t operand_count(const AdapterBackward&) { return 5; }

// Returns the ops of which the composite op is made. `operands` are the composite op's, with or without scratch.
template <class View>
std::vector<OpCall<View>> ops_of(const AdaptedGemm& op, std::span<const View> operands);
template <class View>
std::vector<OpCall<View>> ops_of(const AdapterBackward& op, std::span<const View> operands);

}  // namespace snug
