#include "backend/cuda/expect.h"

#include "backend/cuda/facts.h"
#include "backend/product.h"
#include "program/adapter.h"
#include "program/swiglu_gemm.h"
#include "program/swiglu_quantize.h"

namespace snug::cuda {
namespace {

// Requires gate and up beside each other, and h with a column for both.
void expect_halves(const TensorView& gate_up, const TensorView& h) {
  check(gate_up.dtype == h.dtype && gate_up.rows() == h.rows() && gate_up.cols() == 2 * h.cols(),
        "swiglu: gate and up of {} {}, expected twice the columns of {} {}", name(gate_up.dtype),
        to_string(gate_up.shape), name(h.dtype), to_string(h.shape));
}

bool is_vector(const TensorView& view, int64_t count) {
  return view.dtype == DType::F32 && view.count() == count && view.dense();
}

template <class Kind>
void expect_ops(const Kind& op, std::span<const TensorView> views);

struct Expect {
  const std::vector<TensorView>& views;

  void operator()(const Gemm& gemm) const { product_of(gemm, views); }
  void operator()(const AdaptedGemm& gemm) const { expect_ops(gemm, std::span<const TensorView>(views)); }
  void operator()(const Fill&) const {}
  void operator()(const Accumulate&) const {
    const TensorView &x = views[0], &sum = views[1];
    check(x.dtype == sum.dtype && x.rows() == sum.rows() && x.cols() == sum.cols(),
          "an addend of {} {}, expected {} {} as the result is", name(x.dtype), to_string(x.shape), name(sum.dtype),
          to_string(sum.shape));
  }
  void operator()(const SwiGlu&) const { expect_halves(views[0], views[1]); }
  void operator()(const SwiGluBackward&) const {
    expect_halves(views[1], views[0]);
    expect_halves(views[2], views[0]);
  }
  void operator()(const Quantize& op) const {
    const TensorView &x = views[0], &codes = views[1u + op.factors], &scales = views[2u + op.factors];
    const bool vectors = (!op.factors || is_vector(views[1], x.cols())) && is_vector(scales, x.rows()) &&
                         (!op.column_scales || is_vector(views.back(), x.cols()));
    check(codes.dtype == DType::U8 && codes.rows() == x.rows() && codes.cols() == x.cols() && vectors,
          "swiglu: codes of {} {} and their factors and scales, expected those of {}", name(codes.dtype),
          to_string(codes.shape), to_string(x.shape));
  }
  template <class Other>
  void operator()(const Other& other) const {
    internal_error("'{}' is part of no op", kind(other));
  }
};

template <class Kind>
void expect_ops(const Kind& op, std::span<const TensorView> views) {
  for (const OpCall<TensorView>& call : ops_of(op, views)) std::visit(Expect{call.operands}, call.attrs);
}

}  // namespace

template <class Kind>
void expect_fused(const Kind& op, std::span<const TensorView> views) {
  expect_ops(op, views);
  std::vector<Operand> operands;
  for (const TensorView& view : views) operands.push_back({.dtype = view.dtype, .shape = view.shape});
  const uint64_t scratch = CudaFacts().scratch_bytes(op, operands);
  const bool enough = scratch == 0 ? views.size() == operand_count(op)
                                   : views.size() == operand_count(op) + 1 && views.back().dtype == DType::U8 &&
                                         static_cast<uint64_t>(views.back().count()) >= scratch;
  check(enough, "{}: {} operands and {} bytes of scratch expected", kind(op), operand_count(op), scratch);
}

template void expect_fused(const AdaptedGemm&, std::span<const TensorView>);
template void expect_fused(const AdapterBackward&, std::span<const TensorView>);
template void expect_fused(const SwiGluGemm&, std::span<const TensorView>);
template void expect_fused(const SwiGluGemmBackward&, std::span<const TensorView>);
template void expect_fused(const SwiGluQuantize&, std::span<const TensorView>);
template void expect_fused(const SwiGluBackwardQuantize&, std::span<const TensorView>);

}  // namespace snug::cuda
