// Computes products of attention by warpgroups (warpgroup.cuh).
#pragma once

#include "backend/cuda/attention_tiles.cuh"
#include "backend/cuda/warpgroup.cuh"

namespace snug::cuda {

// D columns lie as smem tiles (warpgroup.cuh) of 64 columns side by side, or of 32 where those hold them without zeros
// beside the last. One instruction multiplies all of them.
template <int D>
inline constexpr int kColumns = D % kSmemTileColumns == 32 ? kSmemTileColumns / 2 : kSmemTileColumns;
template <int D>
inline constexpr int kSmemTiles = (D + kColumns<D> - 1) / kColumns<D>;
template <int D>
inline constexpr int kSmemRowBytes = kColumns<D> * 2;
template <int D>
inline constexpr int kBytesPerRow = kSmemTiles<D>* kSmemRowBytes<D>;

__device__ inline void fetch_float(uint32_t to, const float* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(inside ? 4 : 0));
}
__device__ inline float2 shared_floats(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}

// Define products of 64 rows by `columns` columns, whose sums are `__VA_ARGS__`; o0 and on are the operands after them.
//   product_transposed: sum (+)= a b^T for 16 columns of a and b; a and b in shared memory.
//   product_add: sum += a b for 16 columns of a and rows of b; a in registers.
#define SNUG_PRODUCTS(columns, registers, o0, o1, o2, o3, o4, ...)                                                     \
  __device__ inline void product_transposed(Sum(&s)[columns / 8], uint64_t a, uint64_t b, bool add) {                  \
    SNUG_HOPPER("{.reg .pred p; setp.ne.b32 p, " o2 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns                  \
                "k16.f32.bf16.bf16 {" registers "}, " o0 ", " o1 ", p, 1, 1, 0, 0;}"                                   \
                : __VA_ARGS__                                                                                          \
                : "l"(a), "l"(b), "r"(int{add}));                                                                      \
  }                                                                                                                    \
  __device__ inline void product_add(Sum(&s)[columns / 8], const Fragment& a, uint64_t b) {                            \
    SNUG_HOPPER("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" registers "}, {" o0 ", " o1 ", " o2 \
                ", " o3 "}, " o4 ", 1, 1, 1, 1;"                                                                       \
                : __VA_ARGS__                                                                                          \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                 \
  }

#define SNUG_REGISTERS_40 SNUG_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SNUG_REGISTERS_48 SNUG_REGISTERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SNUG_REGISTERS_56 SNUG_REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
SNUG_PRODUCTS(64, SNUG_REGISTERS_32, "%32", "%33", "%34", "%35", "%36", SNUG_SUMS_8(s, 0))
SNUG_PRODUCTS(80, SNUG_REGISTERS_40, "%40", "%41", "%42", "%43", "%44", SNUG_SUMS_8(s, 0), SNUG_SUM(s, 8),
              SNUG_SUM(s, 9))
SNUG_PRODUCTS(96, SNUG_REGISTERS_48, "%48", "%49", "%50", "%51", "%52", SNUG_SUMS_8(s, 0), SNUG_SUM(s, 8),
              SNUG_SUM(s, 9), SNUG_SUM(s, 10), SNUG_SUM(s, 11))
SNUG_PRODUCTS(112, SNUG_REGISTERS_56, "%56", "%57", "%58", "%59", "%60", SNUG_SUMS_8(s, 0), SNUG_SUM(s, 8),
              SNUG_SUM(s, 9), SNUG_SUM(s, 10), SNUG_SUM(s, 11), SNUG_SUM(s, 12), SNUG_SUM(s, 13))
SNUG_PRODUCTS(128, SNUG_REGISTERS_64, "%64", "%65", "%66", "%67", "%68", SNUG_SUMS_8(s, 0), SNUG_SUMS_8(s, 8))

// Returns matrix_at() as one value for all threads of a warp: the compiler then keeps it where products read it.
template <int row_bytes = kRowBytes>
__device__ uint64_t uniform_matrix(uint32_t address, uint32_t leading_bytes = 16) {
  return matrix_at<row_bytes>(__shfl_sync(kAll, address, 0), leading_bytes);
}

// Returns the bytes from a tile of `rows` rows to its columns [16 k, 16 k + 16).
template <int D>
__device__ constexpr int to_columns(int k, int rows) {
  constexpr int kParts = kColumns<D> / 16;
  return k / kParts * rows * kSmemRowBytes<D> + k % kParts * 32;
}

// Starts sums = a b^T: a is the warpgroup's 64 of a tile's rows, b a tile of 8 N rows.
template <int D, int rows = kTileRows, int N>
__device__ void start_transposed(Sum (&sums)[N], uint32_t a, uint32_t b) {
  const uint32_t first = threadIdx.x / 128 * 64;
  const uint64_t left = uniform_matrix<kSmemRowBytes<D>>(a + first * kSmemRowBytes<D>);
  const uint64_t right = uniform_matrix<kSmemRowBytes<D>>(b);
#pragma unroll
  for (int k = 0; k < (D + 15) / 16; k++)
    product_transposed(sums, moved(left, to_columns<D>(k, rows)), moved(right, to_columns<D>(k, 8 * N)), k > 0);
}
// Starts sums += a b: b is a tile of 16 K rows.
template <int D, int K>
__device__ void start_add(Sum (&sums)[D / 8], const Fragment (&a)[K], uint32_t b) {
  constexpr int kMmaColumns = 128;  // columns of one instruction's result
  constexpr uint32_t kSmemTileBytes = 16 * K * kSmemRowBytes<D>;
  const uint64_t tile = uniform_matrix<kSmemRowBytes<D>>(b, kSmemTileBytes);
  begin_products();
#pragma unroll
  for (int k = 0; k < K; k++) {
    const uint64_t rows = moved(tile, k * 16 * kSmemRowBytes<D>);
    if constexpr (D <= kMmaColumns) {
      product_add(sums, a[k], rows);
    } else {
      product_add(reinterpret_cast<Sum(&)[kMmaColumns / 8]>(sums), a[k], rows);
      product_add(reinterpret_cast<Sum(&)[(D - kMmaColumns) / 8]>(sums[kMmaColumns / 8]), a[k],
                  moved(rows, kMmaColumns / kSmemTileColumns * static_cast<int>(kSmemTileBytes)));
    }
  }
}

// Rounds a result to bf16, as a left factor.
template <int K>
__device__ void round_to_left(Fragment (&a)[K], const Sum (&s)[2 * K]) {
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) a[k][i] = packed(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
}

}  // namespace snug::cuda
