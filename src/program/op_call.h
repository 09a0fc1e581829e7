// Ops that are made of others, for backends, dtypes and shapes without a kernel for the whole: ops_of() (adapter.h,
// swiglu_gemm.h) says which, and in what order.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace snug {

// Of views nobody says whether they are read or written.
inline TensorView read(const TensorView& view) { return view; }
inline TensorView update(const TensorView& view) { return view; }

// Rows or columns [begin, end) of a view seen as a matrix, as emitter.h has them of operands.
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

// An op and its operands, without scratch. View: Operand, or TensorView.
template <class View>
struct OpCall {
  Attrs attrs;
  std::vector<View> operands;
};

// Gives how many an op has without scratch; InternalError if more or fewer were found, scratch left aside.
template <class Kind>
size_t expect_operands(const Kind& op, size_t found) {
  const size_t count = operand_count(op);
  check(found == count || found == count + 1, "{}: {} operands, expected {}", kind(op), found, count);
  return count;
}

// The op as one launch. `bind` makes one of an op that it is made of and its views; products have the op's scratch last
// where there is any.
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
