// Operands of an op as numbers.
#pragma once

#include "ref/forward.h"
#include "tensor/view.h"

namespace snug::ref {

// An operand's elements, as numbers: dense, whatever the view's stride.
struct Tensor {
  DType dtype = DType::F32;
  Shape shape;
  std::vector<double> values;

  int64_t rows() const { return shape.rows(); }
  int64_t cols() const { return shape.cols(); }
  double& operator()(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols() + c)]; }
  double operator()(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols() + c)]; }
  double& operator[](int64_t i) { return values[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
  int64_t index(int64_t i) const { return static_cast<int64_t>(at(values, i)); }

  Matrix<double> matrix() const {
    Matrix<double> m(rows(), cols());
    m.data = values;
    return m;
  }
  std::vector<int32_t> integers(int64_t count) const { return {values.begin(), values.begin() + count}; }
};

// A row a head of a norm's operand: as many columns as its gain has.
inline Tensor by_heads(const Tensor& x, const Tensor& gain) {
  const int64_t n = gain.shape.cols();
  return {x.dtype, {x.shape.count() / n, n}, x.values};
}

}  // namespace snug::ref
