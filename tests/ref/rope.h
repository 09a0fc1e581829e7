// The rotary embedding of op Rope, in plain loops over double.
#pragma once

#include "program/ops.h"
#include "ref/tensor.h"

namespace snug::ref {

inline void rotate(const Rope& op, Tensor& x, const Tensor& positions, const Tensor& table) {
  const int64_t pairs = table.cols() / 2;
  for (int64_t t = 0; t < x.rows(); t++)
    for (int64_t begin = 0; begin < x.cols(); begin += op.dim)
      for (int64_t i = 0; i < pairs; i++) {
        const int64_t axis = op.pairs ? (i >= op.pairs.end_of(0)) + (i >= op.pairs.end_of(1)) : 0,
                      position = positions.index(axis * x.rows() + t);
        double &first = x(t, begin + (op.interleaved ? 2 * i : i)),
               &second = x(t, begin + (op.interleaved ? 2 * i + 1 : i + pairs));
        const double c = table(position, i), s = table(position, i + pairs) * (op.backward ? -1 : 1);
        const double x1 = first, x2 = second;
        first = x1 * c - x2 * s;
        second = x2 * c + x1 * s;
      }
}

}  // namespace snug::ref
