#include "backend/product.h"

#include <algorithm>

#include "program/op_call.h"

namespace snug {
namespace {

template <class View>
MatrixLayout layout(const View& view, bool transposed) {
  check(view.row_stride >= view.shape.cols() || view.shape.rows() <= 1, "rows of {} lie {} elements apart",
        to_string(view.shape), view.row_stride);
  const int64_t stride = std::max(view.row_stride, view.shape.cols());
  return transposed ? MatrixLayout{view.dtype, 1, stride} : MatrixLayout{view.dtype, stride, 1};
}

template <class View>
void expect_shape(std::string_view what, const View& view, int64_t rows, int64_t cols) {
  check(view.shape.rows() == rows && view.shape.cols() == cols, "gemm: {} is {}, expected [{}, {}]", what,
        to_string(view.shape), rows, cols);
}

template <class View>
Product read_product(const Gemm& gemm, std::span<const View> views, bool fp8 = false) {
  Product p;
  p.addend = gemm.addend;
  p.bias = gemm.bias;
  p.alpha = gemm.alpha;
  p.operands = 3u + gemm.addend + gemm.bias;
  check(views.size() == p.operands || views.size() == p.operands + 1, "gemm: {} operands, expected {}", views.size(),
        p.operands);
  const View &a = views[0], &b = views[1], &d = views[p.operands - 1];
  p.m = gemm.transpose_a ? a.shape.cols() : a.shape.rows();
  p.k = gemm.transpose_a ? a.shape.rows() : a.shape.cols();
  p.n = gemm.transpose_b ? b.shape.rows() : b.shape.cols();
  check(p.m > 0 && p.n > 0 && p.k > 0, "gemm: a product of {} and {}", to_string(a.shape), to_string(b.shape));
  expect_shape("b", b, gemm.transpose_b ? p.n : p.k, gemm.transpose_b ? p.k : p.n);
  expect_shape("d", d, p.m, p.n);
  check(a.dtype == b.dtype && (fp8 ? a.dtype == DType::U8 : a.dtype == DType::F32 || a.dtype == DType::BF16),
        "gemm: a is {} and b is {}", name(a.dtype), name(b.dtype));
  const auto expect_dtype = [&](std::string_view what, DType dtype) {
    if (fp8)
      check(dtype == DType::BF16, "fp8_gemm: {} is {}, expected bf16", what, name(dtype));
    else
      check(dtype == DType::F32 || dtype == a.dtype, "gemm: {} is {}, expected fp32 or {}", what, name(dtype),
            name(a.dtype));
  };
  p.a = layout(a, gemm.transpose_a);
  p.b = layout(b, gemm.transpose_b);
  p.d = layout(d, false);
  expect_dtype("d", d.dtype);
  if (gemm.addend) {
    const View& c = views[2];
    expect_shape("c", c, p.m, p.n);
    expect_dtype("c", c.dtype);
    p.c = layout(c, false);
    p.in_place = same_bytes(c, d);
    check(!p.in_place || (p.c.dtype == p.d.dtype && p.c.row_stride == p.d.row_stride),
          "gemm: c and d share bytes but not their layout");
  }
  if (gemm.bias) {
    const View& bias = views[p.operands - 2];
    check(bias.shape.count() == p.n, "gemm: bias is {}, expected [{}]", to_string(bias.shape), p.n);
    expect_dtype("bias", bias.dtype);
    p.bias_dtype = bias.dtype;
  }
  return p;
}

}  // namespace

Product product_of(const Gemm& gemm, std::span<const Operand> operands) { return read_product(gemm, operands); }
Product product_of(const Gemm& gemm, std::span<const TensorView> views) { return read_product(gemm, views); }

Product product_of(const Fp8Gemm& gemm, std::span<const TensorView> views) {
  const std::vector<TensorView> order = without_scales(views);
  const Product p =
      read_product<TensorView>({.transpose_b = true, .addend = gemm.addend, .bias = gemm.bias}, order, true);
  for (const size_t i : {1u, 3u})
    check(views[i].dtype == DType::F32 && views[i].dense() && views[i].count() == views[i - 1].rows(),
          "fp8_gemm: scales are {} {}, expected fp32 [{}]", name(views[i].dtype), to_string(views[i].shape),
          views[i - 1].rows());
  check(p.n % kFp8Multiple == 0 && p.k % kFp8Multiple == 0, "fp8_gemm: [{}, {}] weights, expected multiples of {}", p.n,
        p.k, kFp8Multiple);
  return p;
}

}  // namespace snug
