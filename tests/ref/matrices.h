// Ops of optimizers that take whole matrices, Muon's, Adafactor's and APOLLO's, in plain words; `o` are an op's
// operands.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "program/ops.h"
#include "ref/tensor.h"
#include "ref/update.h"

namespace snug::ref {

inline void momentum(const Momentum& op, std::vector<Tensor>& o) {
  for (int64_t i = 0; i < o[0].shape.count(); i++)
    o[2][i] = o[3][2] == 0 ? 0 : momentum_step(op, o[0][i] * o[3][1], o[1][i]);
}

inline void normalize(std::vector<Tensor>& o) {
  for (int64_t i = 0; i < o[0].shape.count(); i++) o[2][i] = o[0][i] / std::max(std::sqrt(o[1][0]), 1e-7);
}

// U of ScaledSquares and ScaleMatrix.
template <class Op>
double scaled(const Op& op, int64_t r, int64_t c, std::vector<Tensor>& o) {
  double value = o[0](r, c) * o.back()[1];
  if (op.rows) value *= o[1][r];
  if (op.columns) value *= o[op.rows ? 2 : 1][c];
  return value;
}

inline void factored_means(const FactoredMeans& op, const RuntimeScalars& runtime, std::vector<Tensor>& o) {
  Tensor &g = o[0], &rows = o[1], &columns = o[2];
  if (o[3][2] == 0) return;
  const double keep = 1 - std::pow(static_cast<double>(runtime.step), -op.decay);
  const auto follow = [&](double& mean, double total, int64_t n) {
    mean = keep * mean + (1 - keep) * (total / static_cast<double>(n) + op.epsilon);
  };
  std::vector<double> down(static_cast<size_t>(g.cols()));
  for (int64_t r = 0; r < g.rows(); r++) {
    double across = 0;
    for (int64_t c = 0; c < g.cols(); c++) {
      const double square = std::pow(g(r, c) * o[3][1], 2);
      across += square, down[static_cast<size_t>(c)] += square;
    }
    follow(rows[r], across, g.cols());
  }
  for (int64_t c = 0; c < g.cols(); c++) follow(columns[c], down[static_cast<size_t>(c)], g.rows());
}

inline void factored_scales(std::vector<Tensor>& o) {
  for (int64_t r = 0; r < o[0].shape.count(); r++) o[3][r] = 1 / std::sqrt(o[0][r] / o[2][0]);
  for (int64_t c = 0; c < o[1].shape.count(); c++) o[4][c] = 1 / std::sqrt(o[1][c]);
}

inline void scaled_squares(const ScaledSquares& op, std::vector<Tensor>& o) {
  Tensor& squares = o[o.size() - 2];
  for (int64_t r = 0; r < o[0].rows(); r++) {
    squares[r] = 0;
    for (int64_t c = 0; c < o[0].cols(); c++) squares[r] += std::pow(scaled(op, r, c, o), 2);
  }
}

inline void scale_matrix(const ScaleMatrix& op, std::vector<Tensor>& o) {
  if (o.back()[2] == 0) return;
  for (int64_t r = 0; r < o[0].rows(); r++)
    for (int64_t c = 0; c < o[0].cols(); c++) o[0](r, c) = scaled(op, r, c, o) * o[o.size() - 2][0];
}

inline void projected_moments(const ProjectedMoments& op, std::vector<Tensor>& o) {
  Tensor &m = o[1], &v = o[2];
  for (int64_t r = 0; r < o[0].rows(); r++) {
    double steps = 0, squares = 0;
    for (int64_t c = 0; c < o[0].cols(); c++) {
      const double value = o[0](r, c) * o[4][1];
      squares += value * value;
      if (o[4][2] == 0) continue;
      m(r, c) = op.beta1 * m(r, c) + (1 - op.beta1) * value;
      v(r, c) = op.beta2 * v(r, c) + (1 - op.beta2) * value * value;
      steps += std::pow(m(r, c) / (std::sqrt(v(r, c)) + op.epsilon), 2);
    }
    o[3](0, r) = steps, o[3](1, r) = squares;
  }
}

inline void channel_scales(std::vector<Tensor>& o) {
  const auto scale = [&](int64_t c) { return std::sqrt(o[0](0, c)) / (std::sqrt(o[0](1, c)) + 1e-8); };
  for (int64_t c = 0; c < o[1].shape.count(); c++) o[1][c] = scale(o[0].cols() == 1 ? 0 : c);
}

inline void growth_limit(const GrowthLimit& op, const RuntimeScalars& runtime, std::vector<Tensor>& o) {
  const double norm = std::sqrt(o[0][0]), last = o[1][0], step = static_cast<double>(runtime.step);
  const double over = last == 0 ? 1 : std::max(1.01, norm / (last + 1e-8)) / 1.01;
  if (o[3][2] != 0) o[1][0] = norm / over;
  o[2][0] = std::sqrt(op.scale * (1 - std::pow(op.beta2, step))) / (1 - std::pow(op.beta1, step)) / over;
}

}  // namespace snug::ref
