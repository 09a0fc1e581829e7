// Computes attention in bf16 by tiles on the tensor cores (Dao, arXiv:2307.08691) with Ampere's instructions: mma.sync
// on fragments that ldmatrix reads. A block has some rows as stationary operand, and walks over the rows of the other
// side in steps. No block adds to another's result, so sums have one order. Tiles have D columns, of which a head may
// have fewer: the others are zeros, which change no sum, and are not written.
#pragma once

#include "backend/cuda/attention.cuh"
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/facts.h"
#include "backend/cuda/fragments.cuh"

namespace snug::cuda {

inline constexpr int kTileWarps = 8, kTileThreads = 32 * kTileWarps, kTileRows = 16 * kTileWarps, kRowsPerStep = 64;
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Fetch 8 or 4 elements from global to shared memory, in the background; zeros if they are not inside.
__device__ inline void fetch_wide(BFloat16* to, const BFloat16* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0));
}
__device__ inline void fetch_narrow(BFloat16* to, const BFloat16* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 8 : 0));
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

// Holds a tile in shared memory whose rows follow each other without a gap. The 16-byte chunks of a row are exchanged
// by a pattern that differs from row to row, so that eight rows of a column lie in different banks ("swizzling").
template <int D>
struct SwizzledTile {
  // Returns what the numbers of a row's chunks are combined with by exclusive or; rows 8 apart have the same.
  __device__ static int swizzle(int row) { return D / 8 % 8 == 0 ? row % 8 : row / 2 % 4; }
  __device__ BFloat16* at(int row, int chunk) const { return data + row * D + (chunk ^ swizzle(row)) * 8; }
  __device__ SwizzledTile from_row(int row) const { return {data + row * D}; }  // 8 divides it

  // Fetches the tile's first `rows` rows from global memory, in the background, by `threads` threads; `dim` of the
  // columns, which 4 divides, exist: the others, and rows from `left` on, become zeros. A thread fetches a chunk of a
  // group in rows that are far apart, so that it computes few addresses.
  template <int rows, int threads>
  __device__ void fetch(const BFloat16* from, int64_t stride, int64_t left, int dim) const {
    constexpr int kGroup = D / 8 % 8 == 0 ? 8 : 4, kRowsApart = threads / kGroup;
    const int row = static_cast<int>(threadIdx.x) / kGroup, chunk = static_cast<int>(threadIdx.x) % kGroup;
    if (rows < kRowsApart && row >= rows) return;
    const BFloat16* source = from + row * stride + chunk * 8;
    const bool by_eights = dim % 8 == 0;
#pragma unroll
    for (int r = 0; r < rows; r += kRowsApart) {
#pragma unroll
      for (int c = 0; c < D / 8; c += kGroup) {
        const int columns = row + r < left ? dim - (c + chunk) * 8 : 0;  // from here on
        BFloat16* const to = at(row + r, c + chunk);
        const BFloat16* const here = source + c * 8;
        if (by_eights) {
          fetch_wide(to, columns > 0 ? here : from, columns > 0);
        } else {
          fetch_narrow(to, columns > 0 ? here : from, columns > 0);
          fetch_narrow(to + 4, columns > 4 ? here + 4 : from, columns > 4);
        }
      }
      source += kRowsApart * stride;
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
  // 8 N rows, of which it takes `columns` columns from chunk `first` on.
  template <int columns = D, int M, int N>
  __device__ void multiply_add(Sum (&sums)[M][columns / 8], const Sum (&a)[M][N], int first = 0) const {
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
      for (int n = 0; n < columns / 8; n += 2) {
        Fragment right;
        load_matrices_transposed(right, rows + k * 16 * D + ((first + n + lane / 16) ^ swizzle(row)) * 8);
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
// Bounds the mask of a tile's rows, by the tokens of the other side: those from the first to the last that any row sees
// (or is seen by), and those that all rows see.
struct MaskBounds {
  // Returns whether tokens [at, at + count) need no mask.
  __device__ bool show_all(int at, int count) const { return at >= all.begin && at + count <= all.end; }
  // Returns the number of steps of so many tokens from `begin` on over those that any row sees.
  __device__ int steps(int begin, int count) const { return max(0, (any.end - begin + count - 1) / count); }
  Span any, all;
};
// Returns the bounds of rows [first, first + rows), which are queries, or keys.
template <bool of_queries>
__device__ MaskBounds mask_bounds(int first, int rows, const AttentionMask& mask) {
  const int32_t* const starts = of_queries ? mask.starts : mask.key_starts;
  const int last = first + rows - 1;
  const Span low = mask.of<of_queries>(first), high = mask.of<of_queries>(last);
  // Rows before the first document, or after the last, do not count for `any`.
  const int begin = max(first, min(starts[0], last)), end = min(last, max(starts[mask.documents] - 1, first));
  return {{begin == first ? low.begin : mask.of<of_queries>(begin).begin,
           end == last ? high.end : mask.of<of_queries>(end).end},
          {max(low.begin, high.begin), min(low.end, high.end)}};
}
// Returns what one of the rows that have these bounds sees.
template <bool of_queries>
__device__ Span row_span(int row, const MaskBounds& bounds, const AttentionMask& mask) {
  const bool same_begin = bounds.any.begin == bounds.all.begin, same_end = bounds.any.end == bounds.all.end;
  if (mask.bidirectional && same_begin && same_end) return bounds.any;
  if (!mask.bidirectional && of_queries && same_begin) return {bounds.any.begin, row + 1};
  if (!mask.bidirectional && !of_queries && same_end) return {row, bounds.any.end};
  return mask.of<of_queries>(row);
}
// Sets what this thread's rows of the tile that begins at `first` see.
template <bool of_queries>
__device__ void thread_spans(int first, const MaskBounds& bounds, const AttentionMask& mask, Span (&spans)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++) spans[half] = row_span<of_queries>(first + thread_row(half), bounds, mask);
}
// Returns the bounds of a tile's rows, which one thread finds for all; called by all.
template <bool of_queries>
__device__ MaskBounds shared_mask_bounds(int first, int rows, const AttentionMask& mask) {
  __shared__ MaskBounds bounds;
  if (threadIdx.x == 0) bounds = mask_bounds<of_queries>(first, rows, mask);
  __syncthreads();
  return bounds;
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

// Calls f.template operator()<D, capped>() with the columns of the tiles for heads of `dim` elements, which are some of
// `dims` unless scores have a soft cap.
template <const auto& dims, class F>
decltype(auto) dispatch_tile(int64_t dim, float cap, const F& f) {
  if (cap > 0) return dispatch_dim<kCappedTileDims>(dim, [&]<int D>() { return f.template operator()<D, true>(); });
  return dispatch_dim<dims>(dim, [&]<int D>() { return f.template operator()<D, false>(); });
}

// Says what a kernel by tiles can do beside plain attention: few models need it, and it costs every step.
enum class Extra { None, Cap, ValueDim };  // a soft cap on scores; heads of values that have another size than keys'

// Calls f.template operator()<D, extra>() with the kernel by tiles for an op.
template <class Op, class F>
decltype(auto) dispatch_tiled(const Op& op, const F& f) {
  if (op.cap > 0)
    return dispatch_dim<kCappedTileDims>(op.heads.dim, [&]<int D>() { return f.template operator()<D, Extra::Cap>(); });
  if (op.heads.value_dim != op.heads.dim)
    return dispatch_dim<kValueTileDims>(op.heads.widest(),
                                        [&]<int D>() { return f.template operator()<D, Extra::ValueDim>(); });
  return dispatch_dim<kTileDims>(op.heads.dim, [&]<int D>() { return f.template operator()<D, Extra::None>(); });
}

// Gives the size of a head of values, and where its columns and those of a result begin. That they are those of keys
// and queries is known at compile time but for Extra::ValueDim.
template <Extra extra>
struct ValueHeads {
  static constexpr bool kApart = extra == Extra::ValueDim;
  __device__ int dim() const { return kApart ? heads.value_dim : heads.dim; }
  __device__ int value(int kv_head) const { return kApart ? heads.value(kv_head) : heads.key(kv_head); }
  __device__ int result(int head) const { return kApart ? heads.result(head) : heads.query(head); }
  const Heads& heads;
};

}  // namespace snug::cuda
