// Computes attention in bf16 by tiles on the tensor cores (Dao, arXiv:2307.08691) with Ampere's instructions: mma.sync
// on fragments that ldmatrix reads. A block has a tile of kTileRows rows, 16 a warp, as stationary operand, and walks
// over the rows of the other side in steps, of which two are in shared memory. No block adds to another's result, so
// sums have one order. Tiles have D columns, of which a head may have fewer: the others are zeros, which change no sum,
// and are not written.
#pragma once

#include "backend/cuda/attention.cuh"
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/facts.h"
#include "backend/cuda/fragments.cuh"

namespace snug::cuda {

inline constexpr int kTileWarps = 8, kTileThreads = 32 * kTileWarps, kTileRows = 16 * kTileWarps, kRowsPerStep = 64;
// A step of heads of D columns takes this many rows of the other side: half as many for wide heads, so that two tiles
// of each kind fit into 99 KB.
template <int D>
inline constexpr int kRowsPerStepOf = D > 128 ? kRowsPerStep / 2 : kRowsPerStep;
inline constexpr float kLog2E = 1.4426950408889634f;

// Rows of a tile are this many elements apart: 16 bytes more than a row, so that eight rows lie in different banks.
template <int D>
inline constexpr int kPitch = D + 8;

// Fetch 8 or 4 elements from global to shared memory, in the background; zeros if they are not inside.
__device__ inline void fetch_wide(BFloat16* to, const BFloat16* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0));
}
__device__ inline void fetch_narrow(BFloat16* to, const BFloat16* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 8 : 0));
}

// Fetches rows [0, rows) of a tile from global memory, in the background, `dim` columns of them, which 4 divides;
// columns beyond those, and rows from `left` on, become zeros.
template <int D>
__device__ void fetch_tile(BFloat16* tile, const BFloat16* from, int64_t stride, int rows, int64_t left, int dim) {
  constexpr int kChunks = D / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks; i += kTileThreads) {
    const int row = i / kChunks, col = i % kChunks * 8;
    const int columns = row < left ? dim - col : 0;  // from here on
    const auto source = [&](int at) { return from + (columns > at ? row * stride + col + at : 0); };
    BFloat16* const to = tile + row * kPitch<D> + col;
    if (dim % 8 == 0) {
      fetch_wide(to, source(0), columns > 0);
    } else {
      fetch_narrow(to, source(0), columns > 0);
      fetch_narrow(to + 4, source(4), columns > 4);
    }
  }
}

// Waits until a step's tiles are there, while the next step's are fetched; called by all threads.
template <class Fetch>
__device__ void await_step(int step, int steps, const Fetch& fetch) {
  if (step + 1 < steps) {
    fetch(step + 1);
    wait_fetches<1>();
  } else {
    wait_fetches<0>();
  }
  __syncthreads();
}

// Returns 2^x by the processor's approximation.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Loads rows [16 w, 16 w + 16) of a tile, columns [16 k, 16 k + 16), as a left factor.
template <int D>
__device__ void load_left(Fragment& a, const BFloat16* tile, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane % 16;
  load_matrices(a, tile + row * kPitch<D> + k * 16 + lane / 16 * 8);
}

// Returns a left factor that lies in registers already, for multiply_transposed().
template <int K>
__device__ auto left_in_registers(const Fragment (&fragments)[K]) {
  return [&fragments](int k, Fragment& a) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = fragments[k][i];
  };
}

// Computes sums [16 x 8 N] += a b^T; a by left(k) for each 16 of D, b a tile of 8 N rows.
template <int D, int N, class Left>
__device__ void multiply_transposed(Sum (&sums)[N], const Left& left, const BFloat16* b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const BFloat16* const from = b + (lane / 16 * 8 + lane % 8) * kPitch<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < D / 16; k++) {
    Fragment a;
    left(k, a);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      Fragment right;
      load_matrices(right, from + n * 8 * kPitch<D> + k * 16);
      multiply(sums[n], a, right[0], right[1]);
      multiply(sums[n + 1], a, right[2], right[3]);
    }
  }
}

// Computes sums [16 x columns] += a b; a is [16 x 8 N], rounded to bf16 here, b a tile of 8 N rows, or some of its
// columns.
template <int D, int columns = D, int N>
__device__ void multiply_add(Sum (&sums)[columns / 8], const Sum (&a)[N], const BFloat16* b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const BFloat16* const from = b + lane % 16 * kPitch<D> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < N / 2; k++) {
    const Fragment left{packed(a[2 * k][0], a[2 * k][1]), packed(a[2 * k][2], a[2 * k][3]),
                        packed(a[2 * k + 1][0], a[2 * k + 1][1]), packed(a[2 * k + 1][2], a[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < columns / 8; n += 2) {
      Fragment right;
      load_matrices_transposed(right, from + k * 16 * kPitch<D> + n * 8);
      multiply(sums[n], left, right[0], right[1]);
      multiply(sums[n + 1], left, right[2], right[3]);
    }
  }
}

// Writes this warp's 16 rows of a tile, as far as they exist, and `dim` of their columns, times factor[0] for the upper
// eight rows and factor[1] for the lower; `in_eights` says that 8 is known to divide `dim`.
template <int D, bool in_eights = false>
__device__ void save_sums(BFloat16* to, int64_t stride, int64_t left, int dim, const Sum (&sums)[D / 8],
                          const float (&factor)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first + 8 * half;
    const auto pair = [&](int n) {
      return n < D / 8 ? packed(sums[n][2 * half] * factor[half], sums[n][2 * half + 1] * factor[half]) : 0;
    };
    BFloat16* const line = to + row * stride;
    if (in_eights || dim % 8 == 0) {
#pragma unroll
      for (int n = 0; n < D / 8; n += 4) {
        const uint4 chunk = transposed_pairs(pair(n), pair(n + 1), pair(n + 2), pair(n + 3));
        const int col = (n + lane % 4) * 8;
        if (row < left && col < dim) *reinterpret_cast<uint4*>(line + col) = chunk;
      }
    } else {
#pragma unroll
      for (int n = 0; n < D / 8; n++) {
        const int col = n * 8 + lane % 4 * 2;
        if (row < left && col < dim) *reinterpret_cast<uint32_t*>(line + col) = pair(n);
      }
    }
  }
}

// Returns one of the two rows of a tile whose results this thread has; they are of its warp's 16.
__device__ inline int thread_row(int half) {
  return static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half;
}
// Sets both of this thread's rows of the tile that begins at `first`, and the first key to which each attends.
__device__ inline void thread_rows(int first, int tokens, const AttentionMask& mask, int (&row)[2], int (&begin)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    row[half] = first + thread_row(half);
    begin[half] = mask.first_key(row[half], tokens);
  }
}
// Returns the number of steps of `keys` keys from `least` on to which `rows` rows of a tile, from `first` on, attend.
template <int keys>
__device__ int steps_over(int first, int least, int tokens, int rows = kTileRows) {
  return max(0, (min(first + rows, tokens) - least + keys - 1) / keys);
}

// Sets x to the least and y to the largest over all threads of the block.
template <int warps = kTileWarps>
__device__ void block_min_max(int& x, int& y) {
  __shared__ int least[warps], largest[warps];
  x = __reduce_min_sync(kAll, x);
  y = __reduce_max_sync(kAll, y);
  if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = x;
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = y;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < warps; w++) {
    x = min(x, least[w]);
    y = max(y, largest[w]);
  }
}

// Launches the kernel that computes delta, the sums of dout out, for the other kernels of the backward.
void launch_delta(const AttentionGradientRows<BFloat16>& op, cudaStream_t stream);

// Calls f.template operator()<D>() with the first of `dims`, which ascend, into which a head of `dim` fits.
template <const auto& dims, size_t i = 0, class F>
decltype(auto) dispatch_dim(int64_t dim, const F& f) {
  if constexpr (i + 1 < dims.size())
    if (dim > dims[i]) return dispatch_dim<dims, i + 1>(dim, f);
  return f.template operator()<dims[i]>();
}

}  // namespace snug::cuda
