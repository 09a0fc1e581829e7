// Reads a Gemm op's product from its operands, for planning and for binding.
#pragma once

#include <span>
#include <vector>

#include "program/program.h"
#include "tensor/view.h"

namespace snug {

// Describes a matrix in memory, with strides in elements between the rows and columns of op(x).
struct MatrixLayout {
  DType dtype = DType::F32;
  int64_t row_stride = 0, col_stride = 1;

  uint64_t offset(int64_t row, int64_t col) const {  // bytes
    return static_cast<uint64_t>(row * row_stride + col * col_stride) * element_bytes(dtype);
  }
};

struct Product {
  int64_t m = 0, n = 0, k = 0;
  MatrixLayout a, b, c, d;
  DType bias_dtype = DType::F32;
  bool addend = false, bias = false;
  bool in_place = false;  // c is d
  float alpha = 1;
  size_t operands = 0;  // without scratch: a, b, [c], [bias], d

  // Returns two operations for each of m n k.
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// Returns the operands of an Fp8Gemm without the scales, in a Gemm's order.
template <class View>
std::vector<View> without_scales(std::span<const View> views) {
  check(views.size() >= 5, "fp8_gemm: {} operands, expected 5 or more", views.size());
  std::vector<View> order{views[0], views[2]};
  order.insert(order.end(), views.begin() + 4, views.end());
  return order;
}

// Return the product. Throw InternalError if shapes, dtypes or strides do not fit each other.
Product product_of(const Gemm& gemm, std::span<const Operand> operands);
Product product_of(const Gemm& gemm, std::span<const TensorView> views);
// Checks the scales as well.
Product product_of(const Fp8Gemm& gemm, std::span<const TensorView> views);

}  // namespace snug
