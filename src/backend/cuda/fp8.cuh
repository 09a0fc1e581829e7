// Codes of 8 bits with an exponent (e4m3fn), and what finds their scales, for all kernels that write them.
#pragma once

#include "backend/cuda/quantize.cuh"
#include "tensor/codebook.h"

namespace snug::cuda {

struct Fp8 {
  using Code = uint8_t;
  __device__ static float scale(float abs_max) { return abs_max / kFp8Largest; }
  // Returns 0 if elements must be divided one by one: for rows of zeros, or of numbers not finite or far from 1.
  __device__ static float factor(float scale) {
    return scale >= 0x1p-60f && scale <= 0x1p60f ? fast_normal_inverse(scale) : 0.0f;
  }
  template <int N>
  __device__ static void put(Code* to, const Pack<float, N>& x, float scale, float factor) {
    if (kInHardware && factor != 0)
      return put_rounded<N>(to, [&](int k) { return signed_quotient(x[k], scale, factor); });
#pragma unroll
    for (int k = 0; k < N; k++) to[k] = divided(x[k], scale);
  }
  // Puts codes, each with its own scale; `fast` says that none of the factors is 0.
  template <int N>
  __device__ static void put(Code* to, const Pack<float, N>& x, const float* scale, const float* factor, bool fast) {
    if (kInHardware && fast)
      return put_rounded<N>(to, [&](int k) { return signed_quotient(x[k], scale[k], factor[k]); });
#pragma unroll
    for (int k = 0; k < N; k++) to[k] = divided(x[k], scale[k]);
  }
  __device__ static float value(Code code, float scale) { return float_from_fp8(code) * scale; }

 private:
#if __CUDA_ARCH__ >= 890
  static constexpr bool kInHardware = true;
  // Returns the codes of x and y, x's in the lower byte.
  __device__ static uint32_t pair(float x, float y) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
    return pair;
  }
#else
  static constexpr bool kInHardware = false;
  __device__ static uint32_t pair(float, float) { return 0; }
#endif
  // Puts codes in words: the compiler would take bytes from two branches apart and put them together again.
  template <int N, class Value>
  __device__ static void put_rounded(Code* to, const Value& value) {
    if constexpr (N == 1) {
      *to = static_cast<Code>(pair(value(0), 0));
    } else {
      static_assert(N % 4 == 0);
      Pack<uint32_t, N / 4> words;
#pragma unroll
      for (int k = 0; k < N; k += 4)
        words[k / 4] = pair(value(k), value(k + 1)) | pair(value(k + 2), value(k + 3)) << 16;
      save<N / 4>(reinterpret_cast<uint32_t*>(to), words);
    }
  }
  __device__ static float signed_quotient(float x, float scale, float factor) {
    return copysignf(quotient(x, scale, factor), x);
  }
  __device__ __noinline__ static Code divided(float x, float scale) {
    if (scale == 0) return 0;
    const float y = x / scale;
    if (y == y) return fp8_from_float(y);
    // NaN gets the sign that x86's division gives it, negative for infinity by infinity.
    return static_cast<Code>(x == x ? (isinf(scale) ? 0xff : 0x7f) : 0x7f | (__float_as_uint(x) >> 24 & 0x80u));
  }
};

// Returns the largest absolute value among numbers of 16 bits, as the bits of an fp32.
template <class X, int N, int kCount>
__device__ uint32_t abs_max_bits(const Raw<X, N> (&raw)[kCount]) {
  uint32_t two = 0;
#pragma unroll
  for (int i = 0; i < kCount; i++)
#pragma unroll
    for (int k = 0; k < N / 2; k++) two = __vmaxu2(two, raw[i].words[k] & 0x7fff7fffu);
  X abs_max;
  abs_max.bits = static_cast<uint16_t>(max(two >> 16, two & 0xffffu));
  return __float_as_uint(to_float(abs_max));
}

// ---- Scales of columns, found while rows are quantized --------------------------------------------------------------

// Holds the largest absolute values that a thread has seen in each of N columns, two in a word.
template <int N>
struct ColumnMax {
  Pack<uint32_t, N / 2> two{};
  __device__ void add(const Pack<uint32_t, N / 2>& words) {
#pragma unroll
    for (int k = 0; k < N / 2; k++) two[k] = __vmaxu2(two[k], words[k] & 0x7fff7fffu);
  }
  // Puts them as the bits of fp32.
  __device__ void put(uint32_t* to) const {
    Pack<uint32_t, N> bits;
#pragma unroll
    for (int k = 0; k < N / 2; k++) bits[2 * k] = two[k] << 16, bits[2 * k + 1] = two[k] & 0xffff0000u;
    save<N>(to, bits);
  }
};

// Adds a block's largest absolute values of columns, which lie in shared memory as bits, to all blocks': their order
// does not change the result.
__device__ inline void add_column_max(const uint32_t* found, int64_t count, float* column_max) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    if (found[i] > 0) atomicMax(reinterpret_cast<uint32_t*>(column_max) + i, found[i]);
}

// Enqueue what begins the search for columns' largest absolute values, and what makes scales of them.
void clear_column_max(float* column_max, int64_t cols, cudaStream_t stream);
void scale_columns_by_max(float* column_max, int64_t cols, cudaStream_t stream);

}  // namespace snug::cuda
