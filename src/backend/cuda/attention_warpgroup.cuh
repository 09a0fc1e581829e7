// Products of attention by warpgroups, Hopper's wgmma: four warps multiply 64 rows, right factors (and left ones, where
// they are not in registers) are read from shared memory, and sums become valid at a wait, so that other work goes on
// meanwhile. Only in code for sm_90a; warpgroups() says whether this device runs such code.
//
// A tile lies in panels of 64 columns, one after the other; a panel's row is 128 bytes, whose 16-byte pieces are
// permuted by the row (the 128-byte swizzle; tiles start at multiples of 1024 bytes). Rows and columns of sums lie in
// threads as those of mma.sync.
#pragma once

#include "backend/cuda/attention_tiles.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SNUG_HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define SNUG_HOPPER(...)
#endif

namespace snug::cuda {

bool warpgroups();

inline constexpr int kPanel = 64, kRowBytes = 128, kTileAlignment = 1024;
template <int D>
inline constexpr int kBytesPerRow = D* static_cast<int>(sizeof(BFloat16));

// The first multiple of kTileAlignment in dynamic shared memory.
__device__ inline uint32_t tiles_start() {
  extern __shared__ unsigned char shared_bytes[];
  return (shared_address(shared_bytes) + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

__device__ inline void fetch_float(uint32_t to, const float* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(inside ? 4 : 0));
}
__device__ inline float2 shared_floats(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}

// Before products whose registers were written otherwise.
__device__ inline void begin_products() { SNUG_HOPPER("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { SNUG_HOPPER("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `pending` of the groups committed last are under way.
template <int pending>
__device__ void wait_products() {
  SNUG_HOPPER("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Keeps the compiler from moving uses of sums over a wait.
template <int N>
__device__ void settle(Sum (&sums)[N]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+f"(sums[n][i])::"memory");
}

// A matrix in shared memory for the products (PTX ISA, "Matrix Descriptor"), with the 128-byte swizzle. Eight rows are
// 1024 bytes; `panels` is the distance of panels, used where columns are not what is summed over.
__device__ inline uint64_t matrix_at(uint32_t address, uint32_t panels = 16) {
  return uint64_t{address / 16} | uint64_t{panels / 16} << 16 | uint64_t{1024 / 16} << 32 | uint64_t{1} << 62;
}

#define SNUG_SUM(s, n) "+f"(s[n][0]), "+f"(s[n][1]), "+f"(s[n][2]), "+f"(s[n][3])
#define SNUG_SUMS_8(s, n)                                                                                             \
  SNUG_SUM(s, n), SNUG_SUM(s, n + 1), SNUG_SUM(s, n + 2), SNUG_SUM(s, n + 3), SNUG_SUM(s, n + 4), SNUG_SUM(s, n + 5), \
      SNUG_SUM(s, n + 6), SNUG_SUM(s, n + 7)
#define SNUG_REGISTERS_32                                                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define SNUG_REGISTERS_64                                                                                       \
  SNUG_REGISTERS_32                                                                                             \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// sum (+)= a b^T for 16 columns of a and b; a and b in shared memory.
__device__ inline void product_turned(Sum (&s)[8], uint64_t a, uint64_t b, bool add) {
  SNUG_HOPPER(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" SNUG_REGISTERS_32 "}, %32, %33, p, 1, 1, 0, 0;}"
      : SNUG_SUMS_8(s, 0)
      : "l"(a), "l"(b), "r"(int{add}));
}
__device__ inline void product_turned(Sum (&s)[16], uint64_t a, uint64_t b, bool add) {
  SNUG_HOPPER(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" SNUG_REGISTERS_64 "}, %64, %65, p, 1, 1, 0, 0;}"
      : SNUG_SUMS_8(s, 0), SNUG_SUMS_8(s, 8)
      : "l"(a), "l"(b), "r"(int{add}));
}
// sum += a b for 16 columns of a and rows of b; a in registers.
__device__ inline void product_add(Sum (&s)[8], const Fragment& a, uint64_t b) {
  SNUG_HOPPER(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" SNUG_REGISTERS_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
      : SNUG_SUMS_8(s, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void product_add(Sum (&s)[16], const Fragment& a, uint64_t b) {
  SNUG_HOPPER(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" SNUG_REGISTERS_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : SNUG_SUMS_8(s, 0), SNUG_SUMS_8(s, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Columns [16 k, 16 k + 16) of a tile of `rows` rows.
__device__ inline uint32_t columns_at(uint32_t tile, int k, int rows) {
  return tile + static_cast<uint32_t>(k / 4 * rows * kRowBytes + k % 4 * 32);
}

// sums = a b^T: a the warpgroup's 64 of a tile's kOwn rows, b a tile of 8 N rows.
template <int D, int N>
__device__ void start_turned(Sum (&sums)[N], uint32_t a, uint32_t b) {
  const uint32_t own = a + threadIdx.x / 128 * 64 * kRowBytes;
#pragma unroll
  for (int k = 0; k < D / 16; k++)
    product_turned(sums, matrix_at(columns_at(own, k, kOwn)), matrix_at(columns_at(b, k, 8 * N)), k > 0);
}
// sums += a b: b a tile of 16 K rows.
template <int D, int K>
__device__ void start_add(Sum (&sums)[D / 8], const Fragment (&a)[K], uint32_t b) {
  begin_products();
#pragma unroll
  for (int k = 0; k < K; k++)
    product_add(sums, a[k], matrix_at(b + static_cast<uint32_t>(k * 16 * kRowBytes), 16 * K * kRowBytes));
}

// A result as a left factor, rounded to bf16.
template <int K>
__device__ void round_to_left(Fragment (&a)[K], const Sum (&s)[2 * K]) {
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) a[k][i] = packed(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
}

}  // namespace snug::cuda
