// Holds the running softmax and the mask that kernels of attention share.
#pragma once

#include "backend/cuda/attention_tiles.cuh"

namespace snug::cuda {

// Holds the softmax of two rows so far (Milakov and Gimelshein, arXiv:1805.02867): weights are powers of two of scores
// (times log2 e) less `base`, and `sum` is this thread's part of their sum. Where nothing was seen, base is -infinity.
struct RowSoftmax {
  float base[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Replaces products by weights relative to the largest score so far, and returns the factors for the earlier sums.
  template <int N>
  __device__ void add(Sum (&s)[N], float scale, float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < N; n++) largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
      largest = fmaxf(base[half], largest * scale);
      const float next = largest == -INFINITY ? 0.0f : largest;
      factor[half] = power_of_two(base[half] - next);
      base[half] = largest;
      sum[half] = fmaf(sum[half], factor[half], weigh(s, scale, half, next));
    }
  }

  // Returns whether both rows of all of a warp's threads have seen something.
  __device__ bool begun() const { return __all_sync(kAll, fminf(base[0], base[1]) > -INFINITY); }

  // Replaces products by weights relative to the base as it is, which is what add() gives but for a power of two, and
  // needs no maximum. Both rows must have begun. Where weights become large, it raises the base of the warp's rows;
  // returns whether it did, and then the factors for the earlier sums. Scores that grow by 128 or more in one step make
  // sums that are no numbers.
  template <int N>
  __device__ bool add_to_base(Sum (&s)[N], float scale, float (&factor)[2]) {
    constexpr float kLarge = 0x1p40f, kMostRaise = 126.0f;  // of which the inverse power is no subnormal number
    const float total[2] = {weigh(s, scale, 0, base[0]), weigh(s, scale, 1, base[1])};
    sum[0] += total[0];
    sum[1] += total[1];
    if (!__any_sync(kAll, fmaxf(total[0], total[1]) > kLarge)) return false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float largest = fmaxf(total[half], __shfl_xor_sync(kAll, total[half], 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
      const float raise = largest > kLarge ? fminf(floorf(__log2f(largest)), kMostRaise) : 0.0f;
      factor[half] = power_of_two(-raise);
      base[half] += raise;
      sum[half] *= factor[half];
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) s[n][i] *= factor[half];
    }
    return true;
  }

  // Returns whether this thread's sums are no numbers.
  __device__ bool overflown() const { return !(sum[0] < INFINITY && sum[1] < INFINITY); }

  // Returns the sum over all threads of a row.
  __device__ float total(int half) const {
    float x = sum[half];
    x += __shfl_xor_sync(kAll, x, 1);
    x += __shfl_xor_sync(kAll, x, 2);
    return x;
  }

 private:
  // Replaces a row's products by weights relative to `of`, and returns their sum.
  template <int N>
  __device__ static float weigh(Sum (&s)[N], float scale, int half, float of) {
    float total = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; i++) {
        s[n][i] = power_of_two(fmaf(s[n][i], scale, -of));
        total += s[n][i];
      }
    return total;
  }
};

// Multiplies a thread's two rows of sums, each by its factor.
template <int N>
__device__ void scale_rows(Sum (&sums)[N], const float (&factor)[2]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n][i] *= factor[i / 2];
}

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

// Masks products of rows, which see `spans`, with the tokens of the other side from `at` on.
template <int N>
__device__ void apply_mask(Sum (&s)[N], int at, const Span (&spans)[2]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int token = at + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      if (token < spans[i / 2].begin || token >= spans[i / 2].end) s[n][i] = -INFINITY;
    }
}

// Adds a sink to a row's sum of exponentials relative to `maximum`, a score. Returns the factor of the row's result,
// and sets the log of the sum.
__device__ inline float add_sink(float total, float maximum, float sink, float& log_sum) {
  const float most = fmaxf(maximum, sink), rescale = __expf(maximum - most);
  const float sum = fmaf(total, rescale, __expf(sink - most));
  log_sum = most + logf(sum);
  return rescale / sum;
}

// Saves a warp's rows of the tile of a head: those of the tile that begins at row `first`, of which this thread has
// `row` and the eighth after it; and the divisors of their weights.
template <int D, bool in_eights = false>
__device__ void save_attention(const AttentionRows<BFloat16>& op, int head, int first, int row,
                               const RowSoftmax& softmax, const Sum (&out)[D / 8]) {
  const int tokens = static_cast<int>(op.tokens);
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float total = softmax.total(half), base = softmax.base[half] * kLn2;
    inverse[half] = total > 0 ? 1.0f / total : 0.0f;
    float log_sum = total > 0 ? base + logf(total) : 0.0f;
    if (op.sinks && total > 0) inverse[half] = add_sink(total, base, op.sinks[head], log_sum);
    if (threadIdx.x % 4 == 0 && row + 8 * half < tokens) *op.lse.at(head, row + 8 * half) = log_sum;
  }
  save_sums<D, in_eights>(op.out.at(first, op.heads.result(head)), op.out.stride, tokens - first, op.heads.value_dim,
                          out, inverse);
}

}  // namespace snug::cuda
