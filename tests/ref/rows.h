// Rows that are picked or put by number, and squares of rows that are resized.
#pragma once

#include <algorithm>
#include <cmath>

#include "program/ops.h"
#include "ref/tensor.h"

namespace snug::ref {

inline void gather_rows(const Tensor& x, const Tensor& rows, Tensor& y) {
  for (int64_t r = 0; r < y.rows(); r++)
    for (int64_t c = 0; c < y.cols(); c++) y(r, c) = rows[r] < 0 ? 0 : x(rows.index(r), c);
}

inline void scatter_rows(const ScatterRows& op, const Tensor& y, const Tensor& rows, Tensor& x) {
  if (op.how == Scatter::OverZeros) std::ranges::fill(x.values, 0.0);
  for (int64_t r = 0; r < y.rows(); r++)
    for (int64_t c = 0; c < y.cols() && rows[r] >= 0; c++) {
      double& target = x(rows.index(r), c);
      target = (op.how == Scatter::Add ? target : 0) + y(r, c);
    }
}

// Returns how much of one place along a side there is in another: as Pillow resizes (a = -1/2, of what is not beyond
// the edge), or with the edge's repeated (a = -3/4).
inline double cubic_side(const ResizeRows& op, int64_t to, int64_t from) {
  const double a = op.antialias ? -0.5 : -0.75;
  const double centre =
      (static_cast<double>(to) + 0.5) * static_cast<double>(op.from) / static_cast<double>(op.to) - 0.5;
  const auto cubic = [&](int64_t place) {
    const double x = std::abs(static_cast<double>(place) - centre);
    if (x < 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
    return x < 2 ? a * (x * x * x - 5 * x * x + 8 * x - 4) : 0.0;
  };
  double share = 0, sum = 0;
  for (int64_t place = -3; place < op.from + 3; place++) {
    const bool beyond = place < 0 || place >= op.from;
    if (op.antialias && beyond) continue;
    sum += cubic(place);
    if (std::clamp<int64_t>(place, 0, op.from - 1) == from) share += cubic(place);
  }
  return share / sum;
}

inline double resize_weight(const ResizeRows& op, int64_t to, int64_t from) {
  if (to < op.kept || from < op.kept) return to == from ? 1 : 0;
  to -= op.kept;
  from -= op.kept;
  return cubic_side(op, to / op.to, from / op.from) * cubic_side(op, to % op.to, from % op.from);
}

inline void resize_rows(const ResizeRows& op, const Tensor& x, Tensor& y) {
  for (int64_t r = 0; r < y.rows(); r++)
    for (int64_t c = 0; c < y.cols(); c++) {
      y(r, c) = 0;
      for (int64_t s = 0; s < x.rows(); s++) y(r, c) += resize_weight(op, r, s) * x(s, c);
    }
}
inline void resize_rows_backward(const ResizeRows& op, const Tensor& dy, Tensor& dx) {
  for (int64_t s = 0; s < dx.rows(); s++)
    for (int64_t c = 0; c < dx.cols(); c++) {
      dx(s, c) = 0;
      for (int64_t r = 0; r < dy.rows(); r++) dx(s, c) += resize_weight(op, r, s) * dy(r, c);
    }
}

}  // namespace snug::ref
