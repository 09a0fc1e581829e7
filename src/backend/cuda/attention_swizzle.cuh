// Holds tiles of attention in shared memory whose rows follow each other without a gap. The 16-byte chunks of a row are
// exchanged by a pattern that differs from row to row, so that eight rows of a column lie in different banks
// ("swizzling").
#pragma once

#include "backend/cuda/attention_tiles.cuh"

namespace snug::cuda {

template <int D>
struct SwizzledTile {
  static constexpr int kChunks = D / 8;

  // Returns what the numbers of a row's chunks are combined with by exclusive or; rows 8 apart have the same.
  __device__ static int swizzle(int row) { return kChunks % 8 == 0 ? row % 8 : row / 2 % 4; }
  __device__ BFloat16* at(int row, int chunk) const { return data + row * D + (chunk ^ swizzle(row)) * 8; }

  // Fetches rows [0, rows) from global memory, in the background, `dim` columns of them, which 4 divides; columns
  // beyond those, and rows from `left` on, become zeros.
  template <int threads>
  __device__ void fetch(const BFloat16* from, int64_t stride, int rows, int64_t left, int dim) const {
    for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks; i += threads) {
      const int row = i / kChunks, chunk = i % kChunks, col = chunk * 8;
      const int columns = row < left ? dim - col : 0;  // from here on
      const auto source = [&](int at) { return from + (columns > at ? row * stride + col + at : 0); };
      BFloat16* const to = at(row, chunk);
      if (dim % 8 == 0) {
        fetch_wide(to, source(0), columns > 0);
      } else {
        fetch_narrow(to, source(0), columns > 0);
        fetch_narrow(to + 4, source(4), columns > 4);
      }
    }
  }

  // Loads rows [first, first + 16), columns [16 k, 16 k + 16), as a left factor.
  __device__ void load_left(Fragment& a, int first, int k) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    load_matrices(a, at(first + lane % 16, 2 * k + lane / 16));
  }

  // Computes sums += a b^T for each of M left factors; `left(k, a)` gives columns [16 k, 16 k + 16) of them, b is this
  // tile's first 8 N rows.
  template <int M, int N, class Left>
  __device__ void multiply_transposed(Sum (&sums)[M][N], const Left& left) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 16 * 8 + lane % 8;
    const BFloat16* const rows = data + row * D;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      Fragment a[M];
      left(k, a);
      const BFloat16* const column = rows + ((2 * k + lane / 8 % 2) ^ swizzle(row)) * 8;
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        Fragment right;
        load_matrices(right, column + n * 8 * D);
#pragma unroll
        for (int m = 0; m < M; m++) {
          multiply(sums[m][n], a[m], right[0], right[1]);
          multiply(sums[m][n + 1], a[m], right[2], right[3]);
        }
      }
    }
  }

  // Computes sums += a b for each of M left factors [16 x 8 N], which are rounded to bf16 here; b is this tile's first
  // 8 N rows.
  template <int M, int N>
  __device__ void multiply_add(Sum (&sums)[M][D / 8], const Sum (&a)[M][N]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane % 16;
    const BFloat16* const rows = data + row * D;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
      Fragment left[M];
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          left[m][i] = packed(a[m][2 * k + i / 2][i % 2 * 2], a[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        Fragment right;
        load_matrices_transposed(right, rows + k * 16 * D + ((n + lane / 16) ^ swizzle(row)) * 8);
#pragma unroll
        for (int m = 0; m < M; m++) {
          multiply(sums[m][n], left[m], right[0], right[1]);
          multiply(sums[m][n + 1], left[m], right[2], right[3]);
        }
      }
    }
  }

  BFloat16* data;
};

}  // namespace snug::cuda
