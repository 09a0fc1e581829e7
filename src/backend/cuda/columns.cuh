// Sums down the columns of a matrix.
#pragma once

#include "backend/cuda/device.cuh"

namespace snug::cuda {

inline constexpr int kColumnLanes = 8, kColumnRows = 64;  // of a block's threads, across and down

// Sums kColumnLanes groups of columns in a block: thread (l, r) adds rows r, r + kColumnRows, ... in order, and the
// threads' sums are added pairwise.
template <int N, class T, class S>
__global__ void __launch_bounds__(kColumnLanes* kColumnRows)
    column_sum_kernel(Rows<T> x, int64_t rows, int64_t cols, S* sum) {
  __shared__ Pack<float, N> sums[kColumnRows][kColumnLanes];
  const int lane = static_cast<int>(threadIdx.x) % kColumnLanes, down = static_cast<int>(threadIdx.x) / kColumnLanes;
  const int64_t col = (int64_t{blockIdx.x} * kColumnLanes + lane) * N;
  Pack<float, N> total{};
  constexpr int kAhead = N == 8 ? 4 : 8;  // rows requested at once: more of the widest is slower
  if (col < cols) {
#pragma unroll kAhead
    for (int64_t row = down; row < rows; row += kColumnRows) {
      const auto values = load_floats<N>(x.at(row, col));
#pragma unroll
      for (int k = 0; k < N; k++) total[k] += values[k];
    }
  }
  sums[down][lane] = total;
  for (int half = kColumnRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (down >= half) continue;
#pragma unroll
    for (int k = 0; k < N; k++) sums[down][lane][k] += sums[down + half][lane][k];
  }
  if (down == 0 && col < cols) save_floats<N>(sum + col, sums[0][lane]);
}

template <class T, class S>
void sum_columns(const TensorView& x, const TensorView& sum, cudaStream_t stream) {
  constexpr int kGroup = 16 / sizeof(T);
  const auto launch = [&]<int N>() {
    column_sum_kernel<N><<<blocks_of(x.cols(), N * kColumnLanes), kColumnLanes * kColumnRows, 0, stream>>>(
        Rows<T>(x), x.rows(), x.cols(), sum.as<S>());
  };
  wide({x, sum}) ? launch.template operator()<kGroup>() : launch.template operator()<1>();
  check_launch("column_sum");
}

}  // namespace snug::cuda
