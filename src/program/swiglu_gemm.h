// What SwiGluGemm and SwiGluGemmBackward are made of: the linear's product, and SwiGLU's own op. For backends, dtypes
// and shapes without a kernel for both.
#pragma once

#include <span>
#include <vector>

#include "program/program.h"

namespace snug {

// An op and its operands, without scratch. View: Operand, or TensorView.
template <class View>
struct OpCall {
  Attrs attrs;
  std::vector<View> operands;
};

// Of the op, without scratch; and of these, the linear's factors, after which gate_up comes.
inline size_t factor_count(const SwiGluGemm& op) { return op.parts.count() > 0 ? 4 : 2; }
inline size_t factor_count(const SwiGluGemmBackward& op) { return op.adapted ? 4 : 2; }
inline size_t operand_count(const SwiGluGemm& op) { return factor_count(op) + 1 + op.result; }
inline size_t operand_count(const SwiGluGemmBackward& op) { return factor_count(op) + 3; }

// In the order in which they give what the op does. `operands`: the op's, with scratch or without. InternalError where
// there are more or fewer.
template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluGemm& op, std::span<const View> operands);
template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluGemmBackward& op, std::span<const View> operands);

// The same as one launch. `bind` makes one of an op and its views, a product's with the op's scratch last where there
// is any.
template <class Kind, class Bind>
auto bind_ops(const Kind& op, std::span<const TensorView> views, std::string_view site, const Bind& bind) {
  std::vector<decltype(bind(Op{}, views))> launches;
  for (OpCall<TensorView>& call : ops_of(op, views)) {
    if (launches.empty() && views.size() > operand_count(op)) call.operands.push_back(views.back());
    Op part;
    part.attrs = std::move(call.attrs);
    part.site = site;
    launches.push_back(bind(part, std::span<const TensorView>(call.operands)));
  }
  return [launches = std::move(launches)](const PassFacts& facts) {
    for (const auto& launch : launches) launch(facts);
  };
}

// What u has: columns that are summed over beside x's, or none.
template <class Kind, class View>
int64_t adapter_columns(const Kind& op, std::span<const View> operands) {
  return factor_count(op) > 2 ? operands[2].shape.cols() : 0;
}

// Whether cards of compute capability 9.0 have one kernel for it, as far as shapes say, for operands in bf16 of m rows
// and n columns of h.
bool one_kernel(const SwiGluGemm& op, int64_t m, int64_t n, int64_t adapter_columns);
bool one_kernel(const SwiGluGemmBackward& op, int64_t m, int64_t n, int64_t adapter_columns);
template <class Kind, class View>
bool one_kernel(const Kind& op, std::span<const View> operands) {
  return one_kernel(op, operands[0].shape.rows(), operands[factor_count(op)].shape.cols() / 2,
                    adapter_columns(op, operands));
}

}  // namespace snug
