// Computes the gradients of the queries by warpgroups.
#include "backend/cuda/attention_warpgroup_gradients.cuh"

namespace snug::cuda {
namespace {

template <int D>
using QueryTile = Tile<kRows<D, Gradients::OfQueries>>;
template <int D>
__device__ QueryTile<D> query_tile(const GradientRows& op, int number) {
  return {number, op.tokens, op.heads.heads, true};
}

template <int D, Gradients what>
__device__ void fetch_for_queries(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
  const GradientRows& op = b.op;
  const QueryTile<D> place = query_tile<D>(op, tile.number);
  const int kv_head = place.head / op.heads.group();
  const int steps = tile.steps(kRowsPerStep);
  if (threadIdx.x % 32 != 0) return;
  for (int step = 0; step < steps; step++) {
    const int at = tile.seen.begin + step * kRowsPerStep;
    tiles.first.await_empty();
    tiles.expect_first();
    fetch_rows<D>(tiles.first_at(), b.k, kv_head, at, kRowsPerStep, tiles.first.full());
    if constexpr (!kPaired<D>) {
      tiles.second.await_empty();
      tiles.expect_second();
    }
    fetch_rows<D>(tiles.second_at(), b.v, kv_head, at, kRowsPerStep, tiles.second_full());
    tiles.advance();
  }
}

template <bool capped, int D, Gradients what>
__device__ void query_gradient(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
  const GradientRows& op = b.op;
  const QueryTile<D> place = query_tile<D>(op, tile.number);
  const int first = place.first, tokens = static_cast<int>(op.tokens), head = place.head, begin = tile.seen.begin;
  Span spans[2];
  thread_spans<true>(first, tile.bounds, op.mask(b.documents), spans);
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first + thread_row(half);
    if (row >= tokens) continue;
    lse[half] = *op.lse.at(head, row) * kLog2E;
    delta[half] = op.delta[head * op.tokens + row];
  }
  const int steps = tile.steps(kRowsPerStep);
  const float scale = op.scale * kLog2E;
  Sum dq[D / 8] = {};
  const auto compute_p = [&](int step, Sum(&s)[kSumsPerStep]) {
    const int at = begin + step * kRowsPerStep;
    if constexpr (capped) apply_cap(s, op.scale, op.cap);
    if (!tile.bounds.show_all(at, kRowsPerStep)) apply_mask(s, at, spans);
#pragma unroll
    for (int n = 0; n < kSumsPerStep; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = power_of_two(fmaf(s[n][i], scale, -lse[i / 2]));
  };
  const auto compute_ds = [&](Sum(&s)[kSumsPerStep], const Sum(&dp)[kSumsPerStep]) {
    const float inverse = capped ? capped_inverse(op.cap) : 0.0f;
#pragma unroll
    for (int n = 0; n < kSumsPerStep; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float ds = s[n][i] * (dp[n][i] - delta[i / 2]);
        s[n][i] = capped ? ds * cap_slope(s[n][i], lse[i / 2], inverse) : ds;
      }
  };
  if constexpr (D > 192)
    sum_wide_steps(tiles, steps, dq, compute_p, compute_ds);
  else
    sum_steps(tiles, steps, dq, compute_p, compute_ds);
  save_sums<D, true>(op.dq.at(first, op.heads.query(head)), op.dq.stride, tokens - first, op.heads.dim, dq,
                     {op.scale, op.scale});
}

template <int D, bool capped>
struct Queries {
  static constexpr int kOf = kRows<D, Gradients::OfQueries>;
  static __device__ MaskBounds bounds(const Backward& b, int tile) {
    return mask_bounds<true>(query_tile<D>(b.op, tile).first, kOf, b.op.mask(b.documents));
  }
  template <Gradients what>
  static __device__ void fetch_stationary(const Backward& b, const GradientTiles<D, what>& tiles, int tile,
                                          uint32_t full) {
    const QueryTile<D> place = query_tile<D>(b.op, tile);
    fetch_rows<D>(tiles.stationary_first(), b.tile_q, place.head, place.first, kOf, full);
    fetch_rows<D>(tiles.stationary_second(), b.tile_dout, place.head, place.first, kOf, full);
  }
  template <Gradients what>
  static __device__ void fetch(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
    fetch_for_queries(b, tiles, tile);
  }
  template <Gradients what>
  static __device__ void compute(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
    query_gradient<capped>(b, tiles, tile);
  }
};

}  // namespace

int query_gradient_rows(int dim, float cap) {
  return dispatch_tile<kWarpgroupDims>(dim, cap, [&]<int D, bool>() { return kRows<D, Gradients::OfQueries>; });
}

int smem_tile_columns(int dim, float cap) {
  return dispatch_tile<kWarpgroupDims>(dim, cap, [&]<int D, bool>() { return kColumns<D>; });
}

GradientLaunch query_gradient_launch(int dim, float cap, cudaStream_t stream) {
  return dispatch_tile<kWarpgroupDims>(dim, cap, [&]<int D, bool capped>() {
    return gradient_launch<D, Gradients::OfQueries, Queries<D, capped>>(stream);
  });
}

}  // namespace snug::cuda
