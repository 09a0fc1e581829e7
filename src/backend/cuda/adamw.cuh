// Holds the scalars, roundings and operands that AdamW's kernels share.
#pragma once

#include "backend/adamw_scalars.h"
#include "backend/cuda/device.cuh"
#include "backend/master.h"
#include "backend/update_operands.h"
#include "tensor/step_scalars.h"

namespace snug::cuda {

// Holds the step's scalars, and says whether they keep the roots and quotients of normal numbers, torch's (`fast`) and
// bit8_step's (`fast_bit8`), far from the ends of the exponents, so that device.cuh's fast ones are exact.
struct Scalars : AdamWScalars {
  Scalars(const AdamW& adamw, const RuntimeScalars& runtime)
      : AdamWScalars(adamw, runtime),
        fast(root_correction >= 0x1p-20f && root_correction <= 1.0f && epsilon >= 0.0f && epsilon <= 0x1p20f &&
             std::abs(rate_of_mean) >= 0x1p-40f && std::abs(rate_of_mean) <= 0x1p20f),
        fast_bit8(fast && square_share >= 0x1p-20f) {}
  bool fast, fast_bit8;
};

constexpr uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

template <int N>
__device__ bool all_finite(const Pack<float, N>& x) {
  float zeros = 0;
#pragma unroll
  for (int k = 0; k < N; k++) zeros = fmaf(x[k], 0.0f, zeros);
  return zeros == 0.0f;
}

// Saves the upper or the lower halves of N words.
template <bool kUpper, int N, class T>
__device__ void save_halves(T* to, const Pack<uint32_t, N>& words) {
  Pack<uint32_t, N / 2> halves;
#pragma unroll
  for (int k = 0; k < N; k += 2) halves[k / 2] = __byte_perm(words[k], words[k + 1], kUpper ? 0x7632 : 0x5410);
  save<N / 2>(reinterpret_cast<uint32_t*>(to), halves);
}

__device__ inline uint32_t lower_half(uint32_t word) { return word & 0xffffu; }
__device__ inline uint32_t upper_half(uint32_t word) { return word >> 16; }

// Saves N numbers as store_stochastic does; bits(k) are the k-th's 16 random bits.
template <int N, class Bits>
__device__ void save_stochastic(BFloat16* to, const Pack<float, N>& x, const Bits& bits, bool finite) {
  if constexpr (N > 1)
    if (finite) {
      Pack<uint32_t, N> sums;
#pragma unroll
      for (int k = 0; k < N; k++) sums[k] = __float_as_uint(x[k]) + bits(k);
      return save_halves<true>(to, sums);
    }
  Pack<BFloat16, N> rounded;
#pragma unroll
  for (int k = 0; k < N; k++) store_stochastic(rounded[k], x[k], bits(k));
  save<N>(to, rounded);
}

// Loads a tensor's weights, and stores them from fp32.
struct PlainWeight {
  float* w;
  template <int N>
  __device__ Raw<float, N> fetch(int64_t i) const {
    Raw<float, N> raw;
    raw.fetch(w + i);
    return raw;
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& x) const {
    save<N>(w + i, x);
  }
};

struct SplitWeight {
  BFloat16* hi;
  int16_t* lo;
  template <int N>
  struct Joined {
    Raw<BFloat16, N> high;
    Raw<int16_t, N> low;
    __device__ Pack<float, N> floats() const {
      Pack<float, N> x;
#pragma unroll
      for (int k = 0; k < N; k++) x[k] = join(high[k], low[k]);
      return x;
    }
  };
  template <int N>
  __device__ Joined<N> fetch(int64_t i) const {
    Joined<N> raw;
    raw.high.fetch(hi + i);
    raw.low.fetch(lo + i);
    return raw;
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& x) const {
    if constexpr (N > 1)
      if (all_finite(x)) {
        Pack<uint32_t, N> bits, rounded;
#pragma unroll
        for (int k = 0; k < N; k++) {
          bits[k] = __float_as_uint(x[k]);
          rounded[k] = bits[k] + 0x8000u;
        }
        save_halves<true>(hi + i, rounded);
        return save_halves<false>(lo + i, bits);
      }
    Pack<BFloat16, N> high;
    Pack<int16_t, N> low;
#pragma unroll
    for (int k = 0; k < N; k++) split(x[k], high[k], low[k]);
    save<N>(hi + i, high);
    save<N>(lo + i, low);
  }
};

// Returns whether weights are read and written in groups of kWide.
inline bool wide(const UpdatedWeight& of) { return wide({of.weight}) && (!of.split || wide({of.lo})); }

// Holds the operands of AdamW's step of one tensor.
struct BoundAdamW {
  AdamW adamw;
  TensorView gradient, weight, lo, m, v;
  float *m_scales, *v_scales;  // for 8-bit state
  const StepScalars* step;
  cudaStream_t stream;

  DeviceRandom random() const { return {adamw.seed, RandomPurpose::Rounding, adamw.stream}; }
};

// Returns the launch with 8-bit state.
Launch bit8_launch(const BoundAdamW& bound);

}  // namespace snug::cuda
