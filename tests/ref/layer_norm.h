// LayerNorm and its gradient by their definitions (program/ops.h).
#pragma once

#include "ref/tensor.h"

namespace snug::ref {

inline void layer_norm(const LayerNorm& op, std::vector<Tensor>& o) {
  std::vector<double> moments;
  const std::vector<double> bias = op.bias ? o[2].values : std::vector<double>();
  const size_t y = op.bias ? 3 : 2;
  o[y].values = layer_norm(by_heads(o[0], o[1]).matrix(), o[1].values, bias, static_cast<double>(op.epsilon),
                           op.plus_one, &moments)
                    .data;
  o[y + 1].values = moments;
}

inline void layer_norm_backward(const LayerNormBackward& op, std::vector<Tensor>& o) {
  const size_t first = op.bias ? 4 : 3;
  const Tensor &moments = o[first], x = by_heads(o[1], o[2]);
  const int64_t n = x.cols();
  Tensor gain = o[2];
  for (double& value : gain.values) value += op.plus_one;
  Tensor dy = by_heads(o[0], o[2]), dx = by_heads(o[first + 1], o[2]);
  Tensor* const dgain = op.gain_gradient ? &o[first + 2] : nullptr;
  Tensor* const dbias = op.bias_gradient ? &o[first + (dgain ? 3 : 2)] : nullptr;
  for (Tensor* sum : {dgain, dbias})
    if (sum) std::ranges::fill(sum->values, 0.0);
  for (int64_t t = 0; t < x.rows(); t++) {
    const double mean = moments[t], rstd = moments[x.rows() + t];
    const int64_t own = t * n % gain.shape.count();  // where the row of the gain begins
    const auto z = [&](int64_t i) { return (x(t, i) - mean) * rstd; };
    double total = 0, along = 0;
    for (int64_t i = 0; i < n; i++) {
      total += gain[own + i] * dy(t, i) / static_cast<double>(n);
      along += gain[own + i] * dy(t, i) * z(i) / static_cast<double>(n);
    }
    for (int64_t i = 0; i < n; i++) {
      dx(t, i) = (op.accumulate ? dx(t, i) : 0) + rstd * (gain[own + i] * dy(t, i) - total - z(i) * along);
      if (dgain) (*dgain)[own + i] += dy(t, i) * z(i);
      if (dbias) (*dbias)[own + i] += dy(t, i);
    }
    for (int64_t i = 0; op.restore && i < n; i++) dy(t, i) = gain[own + i] * z(i) + (op.bias ? o[3][own + i] : 0);
  }
  o[0].values = dy.values;
  o[first + 1].values = dx.values;
}

}  // namespace snug::ref
