// Scales a gradient by numbers of its rows and columns, and sums the squares of what that gives.
#include "backend/cuda/rows.cuh"
#include "backend/update_operands.h"

namespace snug::cuda {
namespace {

// Multiplies values of a row by their columns' scales, where there are any.
template <int N>
__device__ void scale(Pack<float, N>& values, float factor, const float* columns) {
  if (!columns) {
#pragma unroll
    for (int k = 0; k < N; k++) values[k] *= factor;
    return;
  }
  const auto scales = load<N>(columns);
#pragma unroll
  for (int k = 0; k < N; k++) values[k] *= factor * scales[k];
}

struct SquaresOfScaled {
  float factor;
  const float* columns;
  template <int N>
  __device__ float of(int64_t j, Pack<float, N> x) const {
    scale(x, factor, columns ? columns + j : nullptr);
    float total = 0;
#pragma unroll
    for (int k = 0; k < N; k++) total += x[k] * x[k];
    return total;
  }
};

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    scaled_squares_kernel(const T* g, int64_t cols, const float* rows, const float* columns, float* squares,
                          const StepScalars* scalars) {
  const int64_t row = blockIdx.x;
  const float factor = rows ? scalars->factor * rows[row] : scalars->factor;
  const float total = sum_row<N>(g + row * cols, cols, SquaresOfScaled{factor, columns});
  if (threadIdx.x == 0) squares[row] = total;
}

template <class T>
struct ScaleMatrixBody {
  Rows<T> g;
  const float *rows, *columns, *whole;
  const StepScalars* scalars;
  template <int N>
  __device__ void operator()(int64_t row, int64_t j) const {
    if (scalars->finite == 0.0f) return;
    const float factor = scalars->factor * *whole;
    Pack<float, N> values = load_floats<N>(g.at(row, j));
    scale(values, rows ? factor * rows[row] : factor, columns ? columns + j : nullptr);
    save_floats<N>(g.at(row, j), values);
  }
};

bool is_wide(const ScaledOperands& of) { return of.column_scales ? wide({of.g, of.of_columns}) : wide({of.g}); }

}  // namespace

Launch bind_scaled_squares(const ScaledSquares& attrs, Operands operands, cudaStream_t stream) {
  const ScaledOperands of = scaled_operands(operands, attrs.rows, attrs.columns);
  float* const squares = operands.vector("squares", {DType::F32}, of.g.rows()).as<float>();
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(of.g.dtype, [&]<class T>() -> Launch {
    return [=, words = is_wide(of)](const RuntimeScalars&) {
      dispatch_wide(words, [&]<int N>() {
        scaled_squares_kernel<N><<<blocks_of(of.g.rows(), 1), kThreads, 0, stream>>>(
            of.g.as<T>(), of.g.cols(), of.row_scales, of.column_scales, squares, scalars);
      });
      check_launch("scaled_squares");
    };
  });
}

Launch bind_scale_matrix(const ScaleMatrix& attrs, Operands operands, cudaStream_t stream) {
  const ScaledOperands of = scaled_operands(operands, attrs.rows, attrs.columns);
  const float* const whole = operands.vector("factor", {DType::F32}, 1).as<float>();
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(of.g.dtype, [&]<class T>() -> Launch {
    const ScaleMatrixBody<T> body{Rows<T>(of.g), of.row_scales, of.column_scales, whole, scalars};
    return [=, words = is_wide(of)](const RuntimeScalars&) {
      launch_elements(stream, Extent(of.g.rows(), of.g.cols()), words, body);
    };
  });
}

}  // namespace snug::cuda
