#include "backend/cuda/attention_softmax.cuh"

namespace snug::cuda {
namespace {

// Says how a block of D columns computes kTileRows rows of queries. A warp has two fragments of 16 rows, so that each
// fragment of keys or values that it reads serves both; for wide heads, of which it has registers for one, its queries
// stay in registers. Blocks of narrow heads are small enough for two on a multiprocessor, one of which multiplies while
// the other makes weights.
template <int D, int keys>
struct ForwardShape {
  static constexpr int kFragments = D > 128 ? 1 : 2, kWarps = kTileRows / (16 * kFragments), kThreads = 32 * kWarps;
  static constexpr int kBlocks = D > 128 ? 1 : 2;
  static constexpr bool kQueriesInRegisters = D > 128;
  static constexpr int kQueryElements = kQueriesInRegisters ? 0 : kTileRows * D;
  static constexpr int kBytes = (kQueryElements + 2 * keys * D) * static_cast<int>(sizeof(BFloat16));
};

// Sets what this thread's rows of M fragments see, of which the first is row `first`.
template <int M>
__device__ void fragment_spans(int first, const MaskBounds& bounds, const AttentionMask& mask, Span (&spans)[M][2]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) spans[m][half] = row_span<true>(first + 16 * m + 8 * half, bounds, mask);
}

template <int D, int keys, Extra extra, class S = ForwardShape<D, keys>>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    attention_forward_kernel(const __grid_constant__ AttentionRows<BFloat16> op, int documents) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  static_assert(!S::kQueriesInRegisters || 2 * keys >= kTileRows, "queries come through the tiles of keys and values");
  using Tile = SwizzledTile<D>;
  const Tile queries{reinterpret_cast<BFloat16*>(shared_bytes)};
  const Tile k_tile{queries.data + S::kQueryElements}, v_tile{k_tile.data + keys * D};
  const int head = static_cast<int>(blockIdx.y), kv_head = head / op.heads.group();
  // Late tiles attend to most keys, so they come first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;
  const int warp = static_cast<int>(threadIdx.x) / 32, warp_first = warp * 16 * S::kFragments;  // of the tile's rows

  queries.template fetch<kTileRows, S::kThreads>(op.q.at(first, op.heads.query(head)), op.q.stride,
                                                 static_cast<int>(op.tokens) - first, op.heads.dim);
  commit_fetches();
  const ValueHeads<extra> of_values{op.heads};
  const int key_tokens = static_cast<int>(op.keys);
  const auto fetch_keys = [&](int at) {
    k_tile.template fetch<keys, S::kThreads>(op.k.at(at, op.heads.key(kv_head)), op.k.stride, key_tokens - at,
                                             op.heads.dim);
    commit_fetches();
  };
  const AttentionMask mask = op.mask(documents);
  const MaskBounds bounds = shared_mask_bounds<true>(first, kTileRows, mask);
  const int thread_first = first + warp_first + static_cast<int>(threadIdx.x) % 32 / 4;
  Span spans[S::kFragments][2];
  fragment_spans(thread_first, bounds, mask, spans);
  wait_fetches<0>();
  __syncthreads();
  Fragment kept[S::kQueriesInRegisters ? D / 16 : 1];
  if constexpr (S::kQueriesInRegisters) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) queries.load_left(kept[k], warp_first, k);
    __syncthreads();  // keys and values come where the queries lay
  }
  const auto left = [&](int k, Fragment(&a)[S::kFragments]) {
#pragma unroll
    for (int m = 0; m < S::kFragments; m++)
      if constexpr (S::kQueriesInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[m][i] = kept[k][i];
      } else {
        queries.load_left(a[m], warp_first + 16 * m, k);
      }
  };

  const int steps = bounds.steps(bounds.any.begin, keys);
  RowSoftmax softmax[S::kFragments];
  Sum out[S::kFragments][D / 8] = {};
  if (steps > 0) fetch_keys(bounds.any.begin);
  for (int step = 0; step < steps; step++) {
    const int at = bounds.any.begin + step * keys;
    wait_fetches<0>();
    __syncthreads();  // the keys are there, and nobody reads the values of the step before
    v_tile.template fetch<keys, S::kThreads>(op.v.at(at, of_values.value(kv_head)), op.v.stride, key_tokens - at,
                                             of_values.dim());
    commit_fetches();
    Sum s[S::kFragments][keys / 8] = {};
    k_tile.multiply_transposed(s, left);
    wait_fetches<0>();
    __syncthreads();  // the values are there, and nobody reads the keys
    if (step + 1 < steps) fetch_keys(at + keys);
    const bool masked = !bounds.show_all(at, keys);
#pragma unroll
    for (int m = 0; m < S::kFragments; m++) {
      if constexpr (extra == Extra::Cap) apply_cap(s[m], op.scale, op.cap);
      if (masked) apply_mask(s[m], at, spans[m]);
      float factor[2];
      softmax[m].add(s[m], op.scale * kLog2E, factor);
      scale_rows(out[m], factor);
    }
    v_tile.multiply_add(out, s);
  }
#pragma unroll
  for (int m = 0; m < S::kFragments; m++)
    save_attention<D>(op, head, first + warp * 16 * (S::kFragments - 1) + 16 * m, thread_first + 16 * m, softmax[m],
                      out[m]);
}

// Returns the launch of the kernel that takes so many keys a step.
template <int D, int keys, Extra extra>
AttentionLaunch forward_launch(const AttentionRows<BFloat16>& op, cudaStream_t stream) {
  using S = ForwardShape<D, keys>;
  allow_shared(attention_forward_kernel<D, keys, extra>, S::kBytes);
  return [=, grid = dim3(blocks_of(op.tokens, kTileRows), static_cast<unsigned>(op.heads.heads))](int documents) {
    attention_forward_kernel<D, keys, extra><<<grid, S::kThreads, S::kBytes, stream>>>(op, documents);
    check_launch("attention");
  };
}

}  // namespace

AttentionLaunch tiled_attention(const AttentionRows<BFloat16>& op, cudaStream_t stream) {
  return dispatch_tiled(op, [&]<int D, Extra extra>() -> AttentionLaunch {
    // Heads of 128 take 64 KiB in steps of 64 keys: an A100's multiprocessor has room for two such blocks, those of
    // cards for gaming (8.6, 8.9, 12.0), with 99 KiB, have room for two in steps of 32.
    constexpr int kKeys = 64;
    if constexpr (D == 128) {
      const int64_t most = int64_t{2} * multiprocessors();
      if (resident_blocks(attention_forward_kernel<D, kKeys, extra>, ForwardShape<D, kKeys>::kThreads,
                          ForwardShape<D, kKeys>::kBytes) < most)
        return forward_launch<D, 32, extra>(op, stream);
    }
    return forward_launch<D, kKeys, extra>(op, stream);
  });
}

}  // namespace snug::cuda
