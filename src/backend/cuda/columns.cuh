// Sums down the columns of a matrix.
#pragma once

#include "backend/cuda/device.cuh"

namespace snug::cuda {

inline constexpr int kColumnLanes = 8, kColumnRows = 64;  // of a block's threads, across and down

// Sums kColumnLanes groups of columns in a block: thread (l, r) adds rows r, r + kColumnRows, ... in order, and the
// threads' sums are added pairwise. `of` gives what is added for a value, and takes N columns' sums.
template <int N, class T, class Of>
__global__ void __launch_bounds__(kColumnLanes* kColumnRows)
    column_sum_kernel(Rows<T> x, int64_t rows, int64_t cols, Of of) {
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
      for (int k = 0; k < N; k++) total[k] += of.term(values[k]);
    }
  }
  sums[down][lane] = total;
  for (int half = kColumnRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (down >= half) continue;
#pragma unroll
    for (int k = 0; k < N; k++) sums[down][lane][k] += sums[down + half][lane][k];
  }
  if (down == 0 && col < cols) of.template take<N>(col, sums[0][lane]);
}

// `is_wide` says whether x, and where sums go, may be read and written by words.
template <class T, class Of>
void sum_columns(const TensorView& x, bool is_wide, const Of& of, cudaStream_t stream) {
  constexpr int kGroup = 16 / sizeof(T);
  const auto launch = [&]<int N>() {
    column_sum_kernel<N><<<blocks_of(x.cols(), N * kColumnLanes), kColumnLanes * kColumnRows, 0, stream>>>(
        Rows<T>(x), x.rows(), x.cols(), of);
  };
  is_wide ? launch.template operator()<kGroup>() : launch.template operator()<1>();
  check_launch("column_sum");
}

template <class S>
struct PlainSums {
  S* sum;
  __device__ float term(float x) const { return x; }
  template <int N>
  __device__ void take(int64_t col, const Pack<float, N>& sums) const {
    save_floats<N>(sum + col, sums);
  }
};

template <class T, class S>
void sum_columns(const TensorView& x, const TensorView& sum, cudaStream_t stream) {
  sum_columns<T>(x, wide({x, sum}), PlainSums<S>{sum.as<S>()}, stream);
}

}  // namespace snug::cuda
