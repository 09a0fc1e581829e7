// Computes Adafactor's means of squares of rows and columns, and the scales that they give (program/update_ops.h).
#include "backend/adafactor_scalars.h"
#include "backend/cuda/columns.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/update_operands.h"

namespace snug::cuda {
namespace {

// Returns a mean brought forward by the sum of `n` squares.
__device__ float followed(const FactoredMeansScalars& s, float mean, float total, int64_t n) {
  return fmaf(s.keep, mean, s.share * (total / static_cast<float>(n) + s.epsilon));
}

struct Squares {
  float factor;
  template <int N>
  __device__ float of(int64_t, const Pack<float, N>& x) const {
    float total = 0;
#pragma unroll
    for (int k = 0; k < N; k++) total += (x[k] * factor) * (x[k] * factor);
    return total;
  }
};

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    row_means_kernel(const T* g, int64_t cols, float* rows, const StepScalars* scalars, FactoredMeansScalars s) {
  if (scalars->finite == 0.0f) return;
  const int64_t row = blockIdx.x;
  const float total = sum_row<N>(g + row * cols, cols, Squares{scalars->factor});
  if (threadIdx.x == 0) rows[row] = followed(s, rows[row], total, cols);
}

// Brings columns' means forward (columns.cuh).
struct ColumnMeans {
  float* columns;
  const StepScalars* scalars;
  FactoredMeansScalars s;
  int64_t count;
  __device__ float term(float x) const {
    const float scaled = x * scalars->factor;
    return scaled * scaled;
  }
  template <int N>
  __device__ void take(int64_t col, const Pack<float, N>& sums) const {
    if (scalars->finite == 0.0f) return;
    auto means = load<N>(columns + col);
#pragma unroll
    for (int k = 0; k < N; k++) means[k] = followed(s, means[k], sums[k], count);
    save<N>(columns + col, means);
  }
};

struct InverseRootsBody {
  const float *means, *over;  // over: null for 1
  float* scales;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
#pragma unroll
    for (int k = 0; k < N; k++) scales[i + k] = 1.0f / sqrtf(over ? means[i + k] / *over : means[i + k]);
  }
};

__global__ void square_limit_kernel(const float* square, float threshold, float* factor) {
  *factor = 1.0f / fmaxf(1.0f, sqrtf(*square) / threshold);
}

}  // namespace

Launch bind_factored_means(const FactoredMeans& means, Operands operands, cudaStream_t stream) {
  const FactoredMeansOperands of = factored_means_operands(operands);
  const bool is_wide = wide({of.g, of.columns});
  return dispatch_activation(of.g.dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars& runtime) {
      const FactoredMeansScalars s(means, runtime);
      dispatch_wide(is_wide, [&]<int N>() {
        row_means_kernel<N><<<blocks_of(of.g.rows(), 1), kThreads, 0, stream>>>(of.g.as<T>(), of.g.cols(),
                                                                                of.rows.as<float>(), of.scalars, s);
      });
      check_launch("row_means");
      sum_columns<T>(of.g, is_wide, ColumnMeans{of.columns.as<float>(), of.scalars, s, of.g.rows()}, stream);
    };
  });
}

Launch bind_factored_scales(Operands operands, cudaStream_t stream) {
  const FactoredScalesOperands of = factored_scales_operands(operands);
  return [=, rows = of.rows.as<float>(), columns = of.columns.as<float>()](const RuntimeScalars&) {
    launch_elements(stream, Extent(1, of.rows.count()), false, InverseRootsBody{rows, of.mean, of.row_scales});
    launch_elements(stream, Extent(1, of.columns.count()), false, InverseRootsBody{columns, nullptr, of.column_scales});
  };
}

Launch bind_square_limit(const SquareLimit& limit, Operands operands, cudaStream_t stream) {
  const float* const square = operands.vector("square", {DType::F32}, 1).as<float>();
  float* const factor = operands.vector("factor", {DType::F32}, 1).as<float>();
  operands.done();
  return [=, threshold = static_cast<float>(limit.threshold)](const RuntimeScalars&) {
    square_limit_kernel<<<1, 1, 0, stream>>>(square, threshold, factor);
    check_launch("square_limit");
  };
}

}  // namespace snug::cuda
