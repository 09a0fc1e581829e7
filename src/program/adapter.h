// What AdaptedGemm and AdapterBackward are made of: plain products, for backends and dtypes without kernels for them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "program/ops.h"
#include "program/program.h"

namespace snug {

// A product and its operands, without scratch. View: Operand, or TensorView.
template <class View>
struct GemmCall {
  Gemm gemm;
  std::vector<View> operands;
};

// Whether what comes through an adapter is written before the product with the weight, which then adds to it in the
// only pass over the result that it makes anyway: where it fills all n columns.
inline bool adapter_first(bool transpose_b, const AdaptedParts& parts, int64_t n) {
  return !transpose_b || parts.columns() == n;
}

// d = u v + c, in the columns of the parts; AdaptedGemm says what u and v are. InternalError if they do not fit the
// parts; where b is not transposed there are none.
template <class View>
std::vector<GemmCall<View>> adapter_products(bool transpose_b, const AdaptedParts& parts, const View& u, const View& v,
                                             const std::optional<View>& c, const View& d);

// Of the op, without scratch.
inline size_t operand_count(const AdaptedGemm& op) { return 5u + op.addend + op.bias; }
inline size_t operand_count(const AdapterBackward&) { return 5; }

// Whether cards of compute capability 9.0 have one kernel for it, as far as shapes say, for operands in bf16 of m rows
// and n columns: its tiles are 128 x 256, and have columns of one part alone.
bool one_kernel(const AdaptedGemm& op, int64_t m, int64_t n, int64_t adapter_columns);

// One after the other they give what the op does. `operands`: the op's, with scratch or without.
template <class View>
std::vector<GemmCall<View>> products_of(const AdaptedGemm& op, std::span<const View> operands);
template <class View>
std::vector<GemmCall<View>> products_of(const AdapterBackward& op, std::span<const View> operands);

// The same as one launch. `bind` makes one of a Gemm and its operands, the op's scratch last where there is any.
template <class Kind, class Bind>
auto bind_products(const Kind& op, std::span<const TensorView> views, const Bind& bind) {
  std::vector<decltype(bind(Gemm{}, views))> launches;
  for (GemmCall<TensorView>& call : products_of(op, views)) {
    if (views.size() > operand_count(op)) call.operands.push_back(views.back());
    launches.push_back(bind(call.gemm, std::span<const TensorView>(call.operands)));
  }
  return [launches = std::move(launches)](const PassFacts& facts) {
    for (const auto& launch : launches) launch(facts);
  };
}

}  // namespace snug
