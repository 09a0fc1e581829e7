// Computes products of a warp on the tensor cores with Ampere's instructions: mma.sync on fragments that ldmatrix reads
// (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Factors are bf16, sums fp32.
#pragma once

#include "backend/cuda/bulk.cuh"
#include "backend/cuda/device.cuh"

namespace snug::cuda {

using Fragment = uint32_t[4];  // 16 x 16 of a left factor
using Sum = float[4];          // 16 x 8 of a result: rows l/4 and l/4 + 8 of lane l, columns 2 (l % 4) and the next

__device__ inline void load_matrices(Fragment& to, const BFloat16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from)));
}
__device__ inline void load_matrices_transposed(Fragment& to, const BFloat16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from)));
}

__device__ inline void multiply(Sum& sum, const Fragment& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t packed(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ inline float low_number(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_number(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Transposes 4 x 4 pairs over each four lanes: lane q gives its pair of each of four columns, and gets the four pairs
// of column q.
__device__ inline uint4 transposed_pairs(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
  const uint32_t ab = __shfl_xor_sync(kAll, odd ? a : b, 1), cd = __shfl_xor_sync(kAll, odd ? c : d, 1);
  (odd ? a : b) = ab;
  (odd ? c : d) = cd;
  const uint32_t x = __shfl_xor_sync(kAll, high ? a : c, 2), y = __shfl_xor_sync(kAll, high ? b : d, 2);
  return high ? uint4{x, y, c, d} : uint4{a, b, x, y};
}

}  // namespace snug::cuda
