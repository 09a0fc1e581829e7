// Resizes squares of rows, and gives their gradients (program/row_ops.h).
#include "program/row_ops.h"

#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

// Adds a row's numbers, times a weight.
template <int N, class T>
__device__ void add_weighted(Pack<float, N>& total, float weight, const T* row) {
  const auto values = load_floats<N>(row);
#pragma unroll
  for (int k = 0; k < N; k++) total[k] += weight * values[k];
}

template <class X, class Y>
struct ResizeBody {
  Rows<X> x;
  Rows<Y> y;
  ResizeRows op;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    if (row < op.kept) return save_floats<N>(y.at(row, col), load_floats<N>(x.at(row, col)));
    const int64_t place = row - op.kept;
    const CubicTaps down = cubic_taps(op, place / op.to), across = cubic_taps(op, place % op.to);
    Pack<float, N> total{};
#pragma unroll
    for (int i = 0; i < CubicTaps::kCount; i++)
#pragma unroll
      for (int j = 0; j < CubicTaps::kCount; j++)
        add_weighted<N>(total, down.weight[i] * across.weight[j],
                        x.at(op.kept + down.place[i] * op.from + across.place[j], col));
    save_floats<N>(y.at(row, col), total);
  }
};

template <class X, class Y>
struct ResizeBackwardBody {
  Rows<X> dy;
  Rows<Y> dx;
  ResizeRows op;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    if (row < op.kept) return save_floats<N>(dx.at(row, col), load_floats<N>(dy.at(row, col)));
    const int64_t line = (row - op.kept) / op.from, column = (row - op.kept) % op.from;
    Pack<float, N> total{};
    for (int64_t i = first_reader(op, line); i < end_of_readers(op, line); i++) {
      const float share = cubic_share(op, i, line);
      for (int64_t j = first_reader(op, column); share != 0 && j < end_of_readers(op, column); j++)
        if (const float weight = share * cubic_share(op, j, column); weight != 0)
          add_weighted<N>(total, weight, dy.at(op.kept + i * op.to + j, col));
    }
    save_floats<N>(dx.at(row, col), total);
  }
};

template <template <class, class> class Body>
Launch launch_of(const TensorView& x, const TensorView& y, const ResizeRows& resize, cudaStream_t stream) {
  return dispatch_activation(x.dtype, [&]<class X>() {
    return dispatch_activation(y.dtype, [&]<class Y>() -> Launch {
      return [=](const RuntimeScalars&) {
        launch_elements(stream, Extent(y.rows(), y.cols()), wide({x, y}), Body<X, Y>{Rows<X>(x), Rows<Y>(y), resize});
      };
    });
  });
}

}  // namespace

Launch bind_resize_rows(const ResizeRows& resize, Operands operands, cudaStream_t stream) {
  const auto of = resize_rows_operands(resize, operands);
  return launch_of<ResizeBody>(of.small, of.large, resize, stream);
}

Launch bind_resize_rows_backward(const ResizeRowsBackward& resize, Operands operands, cudaStream_t stream) {
  const auto of = resize_rows_backward_operands(resize, operands);
  return launch_of<ResizeBackwardBody>(of.large, of.small, resize, stream);
}

}  // namespace snug::cuda
