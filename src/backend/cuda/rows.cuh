// Sums along a row of a matrix, by a block of kThreads.
#pragma once

#include "backend/cuda/device.cuh"

namespace snug::cuda {

// Adds term.of<N>(j, values) for all groups of a row's elements; every thread of the block gets the sum.
template <int N, class T, class Term>
__device__ float sum_row(const T* row, int64_t cols, const Term& term) {
  __shared__ float shared[32];
  float total = 0;
#pragma unroll 4
  for (int64_t j = int64_t{threadIdx.x} * N; j < cols; j += int64_t{kThreads} * N)
    total += term.template of<N>(j, load_floats<N>(row + j));
  return block_sum(total, shared);
}

}  // namespace snug::cuda
