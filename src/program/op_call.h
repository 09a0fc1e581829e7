// Describes ops that are made of others, for backends, dtypes and shapes without a kernel for the whole op. An ops_of()
// (adapter.h, swiglu_gemm.h) lists the ops of which each is made, in their order.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace snug {

// Return the view unchanged: views, unlike operands, do not say whether they are read or written.
inline TensorView read(const TensorView& view) { return view; }
inline TensorView update(const TensorView& view) { return view; }

// Return rows or columns [begin, end) of a view seen as a matrix, as emitter.h does for operands.
inline TensorView rows(const TensorView& x, int64_t begin, int64_t end) {
  check(0 <= begin && begin <= end && end <= x.rows(), "rows {} to {} of {}", begin, end, to_string(x.shape));
  return {x.data + begin * x.row_stride * static_cast<int64_t>(element_bytes(x.dtype)), x.dtype,
          Shape{end - begin, x.cols()}, x.row_stride};
}
inline TensorView columns(const TensorView& x, int64_t begin, int64_t end) {
  check(0 <= begin && begin <= end && end <= x.cols(), "columns {} to {} of {}", begin, end, to_string(x.shape));
  return {x.data + begin * static_cast<int64_t>(element_bytes(x.dtype)), x.dtype, Shape{x.rows(), end - begin},
          x.row_stride};
}

inline bool same_bytes(const Operand& x, const Operand& y) { return x.buffer == y.buffer && x.offset == y.offset; }
inline bool same_bytes(const TensorView& x, const TensorView& y) { return x.data == y.data; }

// Holds an op and its operands, without scratch. View is Operand or TensorView.
template <class View>
struct OpCall {
  Attrs attrs;
  std::vector<View> operands;
};

// Returns the number of operands that an op has without scratch. Throws InternalError unless `found` is that number or,
// with scratch, one more.
template <class Kind>
size_t expect_operands(const Kind& op, size_t found) {
  const size_t count = operand_count(op);
  check(found == count || found == count + 1, "{}: {} operands, expected {}", kind(op), found, count);
  return count;
}

// Returns one launch that runs the ops of which the op is made. `bind` makes a launch of one of them and its views;
// products get the composite op's scratch as their last view, where it has any.
template <class Kind, class Bind>
auto bind_ops(const Kind& op, std::span<const TensorView> views, std::string_view site, const Bind& bind) {
  std::vector<decltype(bind(Op{}, views))> launches;
  for (OpCall<TensorView>& call : ops_of(op, views)) {
    const bool product = std::holds_alternative<Gemm>(call.attrs) || std::holds_alternative<AdaptedGemm>(call.attrs);
    if (product && views.size() > operand_count(op)) call.operands.push_back(views.back());
    Op part;
    part.attrs = std::move(call.attrs);
    part.site = site;
    launches.push_back(bind(part, std::span<const TensorView>(call.operands)));
  }
  return [launches = std::move(launches)](const RuntimeScalars& runtime) {
    for (const auto& launch : launches) launch(runtime);
  };
}

}  // namespace snug
