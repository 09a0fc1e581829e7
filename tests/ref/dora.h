// What the ops of adapters with trained norms of rows should give (reference.h).
#pragma once

#include <cmath>

#include "program/ops.h"
#include "ref/tensor.h"

namespace snug::ref {

inline double row_norm(const Tensor& x, int64_t row) {
  double squares = 0;
  for (int64_t i = 0; i < x.cols(); i++) squares += x(row, i) * x(row, i);
  return std::sqrt(squares);
}

inline void row_norms(std::vector<Tensor>& o) {
  for (int64_t row = 0; row < o[0].rows(); row++) o[1][row] = row_norm(o[0], row);
}

inline void adapted_norms(const AdaptedNorms& op, std::vector<Tensor>& o) {
  const Tensor &wa = o[0], &aa = o[1], &b = o[2], &norms = o[3];
  const auto scale = static_cast<double>(op.scale);
  for (int64_t row = 0; row < b.rows(); row++) {
    double square = norms[row] * norms[row];
    for (int64_t i = 0; i < b.cols(); i++) {
      square += 2 * scale * wa(row, i) * b(row, i);
      for (int64_t j = 0; j < b.cols(); j++) square += scale * scale * b(row, i) * aa(i, j) * b(row, j);
    }
    o[6](0, row) = square > 0 ? (o[4][row] + o[5][row]) / std::sqrt(square) : 1;
    o[6](1, row) = square > 0 ? 1 / std::sqrt(square) : 0;
  }
}

// Returns where in the factors those of a column stand; -1 for a column of no part.
inline int64_t factor_of(const AdaptedParts& parts, int64_t column) {
  int64_t row = 0;
  for (size_t p = 0; p < parts.end.size(); p++) {
    if (parts.begin[p] <= column && column < parts.end[p]) return row + column - parts.begin[p];
    row += parts.end[p] - parts.begin[p];
  }
  return -1;
}

inline void scale_columns(const ScaleColumns& op, std::vector<Tensor>& o) {
  const Tensor& z = o[0];
  for (int64_t t = 0; t < z.rows(); t++)
    for (int64_t c = 0; c < z.cols(); c++) {
      const int64_t at = factor_of(op.parts, c);
      double y = z(t, c) * (at < 0 ? 1 : o[1](0, at));
      if (op.addend) y += o[2](t, c);
      if (op.bias) y += o[op.addend ? 3 : 2][c];
      o.back()(t, c) = y;
    }
}

inline void scale_columns_backward(const ScaleColumnsBackward& op, std::vector<Tensor>& o) {
  for (int64_t c = 0; c < o[0].cols(); c++) {
    const int64_t at = factor_of(op.parts, c);
    double sum = 0;
    for (int64_t t = 0; t < o[0].rows(); t++) {
      sum += o[0](t, c) * o[1](t, c);
      o[3](t, c) = o[0](t, c) * (at < 0 ? 1 : o[2](0, at));
    }
    if (at >= 0) o[4][at] = sum * o[2](1, at);
  }
}

inline void set_row_norms(std::vector<Tensor>& o) {
  for (int64_t row = 0; row < o[0].rows(); row++) {
    const double norm = row_norm(o[0], row);
    for (int64_t i = 0; norm > 0 && i < o[0].cols(); i++) o[0](row, i) *= o[1][row] / norm;
  }
}

}  // namespace snug::ref
