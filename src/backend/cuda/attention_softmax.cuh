// Holds the running softmax and the mask that kernels of attention share.
#pragma once

#include "backend/cuda/attention_tiles.cuh"

namespace snug::cuda {

// Holds the softmax of two rows so far (Milakov and Gimelshein, arXiv:1805.02867): the largest product, and this
// thread's part of the sum of exponentials.
struct RowSoftmax {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Replaces products by weights relative to the new maxima, and returns the factors for the earlier sums.
  template <int N>
  __device__ void add(Sum (&s)[N], float scale, float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float largest = maximum[half];
#pragma unroll
      for (int n = 0; n < N; n++) largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
      const float base = largest == -INFINITY ? 0.0f : largest * scale;
      factor[half] = power_of_two(fmaf(maximum[half], scale, -base));
      maximum[half] = largest;
      float total = 0;
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
          s[n][i] = power_of_two(fmaf(s[n][i], scale, -base));
          total += s[n][i];
        }
      sum[half] = fmaf(sum[half], factor[half], total);
    }
  }

  // Returns the sum over all threads of a row.
  __device__ float total(int half) const {
    float x = sum[half];
    x += __shfl_xor_sync(kAll, x, 1);
    x += __shfl_xor_sync(kAll, x, 2);
    return x;
  }
};

// Replaces products s, which `scale` makes scores, by those of capped scores: scale s becomes cap tanh(scale s / cap).
template <int N>
__device__ void apply_cap(Sum (&s)[N], float scale, float cap) {
  const float inner = 2 * kLog2E * scale / cap, outer = cap / scale;
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = outer * (1 - __fdividef(2.0f, 1 + power_of_two(s[n][i] * inner)));
}

// Returns what the gradient of a capped score is multiplied by to be that of the score: 1 - tanh^2. The score follows
// from its weight p and its row's lse (of 2^x); `inverse` is capped_inverse().
__device__ inline float cap_slope(float p, float lse, float inverse) {
  const float t = (__log2f(p) + lse) * inverse;
  return p > 0 ? fmaf(-t, t, 1.0f) : 0.0f;
}
__device__ inline float capped_inverse(float cap) { return 1.0f / (cap * kLog2E); }

// Masks products with the keys from `at` on: keys after the query, and keys before the first to which it attends.
template <int N>
__device__ void apply_mask(Sum (&s)[N], int at, const int (&row)[2], const int (&begin)[2]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int key = at + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      if (key > row[i / 2] || key < begin[i / 2]) s[n][i] = -INFINITY;
    }
}

// Masks transposed products with the queries from `at` on: queries before the key, and queries that no longer attend to
// it.
template <int N>
__device__ void apply_transposed_mask(Sum (&s)[N], int at, const int (&row)[2], const int (&end)[2]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int query = at + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2;
      if (query < row[j / 2] || query >= end[j / 2]) s[n][j] = -INFINITY;
    }
}

// Saves the tile of a head that begins at row `first`, and the divisors of its rows' weights.
template <int D, bool in_eights = false>
__device__ void save_attention(const AttentionRows<BFloat16>& op, int head, int first, const int (&row)[2],
                               const RowSoftmax& softmax, const Sum (&out)[D / 8]) {
  const int tokens = static_cast<int>(op.tokens);
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float total = softmax.total(half);
    inverse[half] = total > 0 ? 1.0f / total : 0.0f;
    if (threadIdx.x % 4 == 0 && row[half] < tokens)
      *op.lse.at(head, row[half]) = total > 0 ? fmaf(op.scale, softmax.maximum[half], logf(total)) : 0.0f;
  }
  save_sums<D, in_eights>(op.out.at(first, op.heads.query(head)), op.out.stride, tokens - first, op.heads.dim, out,
                          inverse);
}

}  // namespace snug::cuda
