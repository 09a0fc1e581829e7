// Resizes squares of rows, and gives their gradients (program/row_ops.h).
#include "program/row_ops.h"

#include <algorithm>

#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

constexpr int64_t kTile = 256;  // columns whose sums are held at a time

// Returns a launch that sets every row of y to a weighted sum of rows of x: for_terms(row, add) calls add(row of x,
// weight) for each, in order.
template <class ForTerms>
Launch sums_of_rows(const TensorView& x, const TensorView& y, const ForTerms& for_terms) {
  return dispatch_activation(x.dtype, [&]<class X>() {
    return dispatch_activation(y.dtype, [&]<class Y>() -> Launch {
      return [=, from = Rows<X>(x), to = Rows<Y>(y), rows = y.rows(), cols = y.cols()](const RuntimeScalars&) {
        share_rows(rows, cols, [&](int64_t row) {
          for (int64_t first = 0; first < cols; first += kTile) {
            const int64_t width = std::min(kTile, cols - first);
            float total[kTile] = {};
            for_terms(row, [&](int64_t other, float weight) {
              const X* source = from[other] + first;
#pragma omp simd
              for (int64_t j = 0; j < width; j++) total[j] += weight * to_float(source[j]);
            });
            for (int64_t j = 0; j < width; j++) store(to[row][first + j], total[j]);
          }
        });
      };
    });
  });
}

}  // namespace

Launch bind_resize_rows(const ResizeRows& resize, Operands operands) {
  const auto of = resize_rows_operands(resize, operands);
  return sums_of_rows(of.small, of.large, [resize](int64_t row, const auto& add) {
    if (row < resize.kept) return add(row, 1.0f);
    const int64_t place = row - resize.kept;
    const CubicTaps down = cubic_taps(resize, place / resize.to), across = cubic_taps(resize, place % resize.to);
    for (int i = 0; i < CubicTaps::kCount; i++)
      for (int j = 0; j < CubicTaps::kCount; j++)
        add(resize.kept + down.place[i] * resize.from + across.place[j], down.weight[i] * across.weight[j]);
  });
}

Launch bind_resize_rows_backward(const ResizeRowsBackward& resize, Operands operands) {
  const auto of = resize_rows_backward_operands(resize, operands);
  return sums_of_rows(of.large, of.small, [resize](int64_t row, const auto& add) {
    if (row < resize.kept) return add(row, 1.0f);
    const int64_t line = (row - resize.kept) / resize.from, column = (row - resize.kept) % resize.from;
    for (int64_t i = first_reader(resize, line); i < end_of_readers(resize, line); i++) {
      const float share = cubic_share(resize, i, line);
      for (int64_t j = first_reader(resize, column); share != 0 && j < end_of_readers(resize, column); j++)
        if (const float weight = share * cubic_share(resize, j, column); weight != 0)
          add(resize.kept + i * resize.to + j, weight);
    }
  });
}

}  // namespace snug::cpu
