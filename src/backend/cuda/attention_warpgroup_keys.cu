// Computes the gradients of keys and values by warpgroups.
#include "backend/cuda/attention_warpgroup_gradients.cuh"

namespace snug::cuda {
namespace {

// Fetches a number for each of kRowsPerStep tokens from `at` on, by a warp.
__device__ void fetch_floats(uint32_t to, const float* from, int at, int tokens) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int part = 0; part < kRowsPerStep; part += 32) {
    const int token = at + part + lane;
    const bool inside = token < tokens;
    fetch_float(to + static_cast<uint32_t>(part + lane) * 4, from + (inside ? token : 0), inside);
  }
}

using KeyTile = Tile<kTileRows>;
__device__ KeyTile key_tile(const GradientRows& op, int number) { return {number, op.keys, op.heads.kv_heads, false}; }

template <int D, Gradients what>
__device__ void fetch_for_keys(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
  const GradientRows& op = b.op;
  const int tokens = static_cast<int>(op.tokens);
  const bool leads = threadIdx.x % 32 == 0;
  const KeyTile place = key_tile(op, tile.number);
  const int steps = tile.steps(kRowsPerStep);
  for (int i = 0; i < steps * op.heads.group(); i++) {
    const int head = place.head * op.heads.group() + i / steps, at = tile.seen.begin + i % steps * kRowsPerStep;
    const auto fetch_first = [&] { fetch_rows<D>(tiles.first_at(), b.q, head, at, kRowsPerStep, tiles.first.full()); };
    const auto fetch_second = [&] {
      fetch_rows<D>(tiles.second_at(), b.dout, head, at, kRowsPerStep, tiles.second_full());
    };
    const auto fetch_lse = [&] { fetch_floats(tiles.lse_at(), op.lse.at(head, 0), at, tokens); };
    tiles.first.await_empty();
    if constexpr (kPaired<D>) {
      if (leads) {
        tiles.expect_first();
        fetch_first();
        fetch_second();
      }
      fetch_lse();
    } else {
      if (leads) {
        tiles.expect_first();
        fetch_first();
      }
      fetch_lse();
      arrive_after_fetches(tiles.first.full());
      tiles.second.await_empty();
      if (leads) {
        tiles.expect_second();
        fetch_second();
      }
    }
    fetch_floats(tiles.delta_at(), op.delta + head * op.tokens, at, tokens);
    arrive_after_fetches(tiles.second_full());
    tiles.advance();
  }
}

// Holds a thread's two rows of keys, and the steps over the queries that attend to them.
template <bool capped>
struct KeyRows {
  __device__ KeyRows(const GradientRows& op, int documents, int tile_first, const TakenTile& tile)
      : first(tile.seen.begin), steps(tile.steps(kRowsPerStep)), all(tile.bounds.all) {
    thread_spans<false>(tile_first, tile.bounds, op.mask(documents), spans);
    all_steps = steps * op.heads.group();
    scale = op.scale * kLog2E;
    score_scale = op.scale;
    cap = op.cap;
  }
  // Returns the first query of the step after the one that begins at `at`; after a head's last it is the next head's
  // first.
  __device__ int next(int at) const {
    return at + kRowsPerStep < first + steps * kRowsPerStep ? at + kRowsPerStep : first;
  }
  // Replaces transposed products, whose rows are keys and whose columns are queries from `at` on, by weights; `floats`
  // are this thread's lse.
  __device__ void compute_p(Sum (&s)[kSumsPerStep], int at, uint32_t floats) const {
    if constexpr (capped) apply_cap(s, score_scale, cap);
    if (at < all.begin || at + kRowsPerStep > all.end) apply_mask(s, at, spans);
#pragma unroll
    for (int n = 0; n < kSumsPerStep; n++) {
      const float2 lse = shared_floats(floats + static_cast<uint32_t>(n * 32));
      const float base[2] = {-kLog2E * lse.x, -kLog2E * lse.y};
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] = power_of_two(fmaf(s[n][j], scale, base[j % 2]));
    }
  }
  int first, steps, all_steps;
  Span all, spans[2];  // the queries that see all rows of the tile, or one of them
  float scale, score_scale, cap;
};

// Returns where this thread's columns of a step's lse or delta begin.
__device__ uint32_t thread_floats(uint32_t floats) { return floats + threadIdx.x % 4 * 8; }

// Replaces transposed weights by ds; `floats` are this thread's delta, and `lse_floats` its lse.
template <bool capped>
__device__ void compute_transposed_ds(const KeyRows<capped>& rows, Sum (&s)[kSumsPerStep],
                                      const Sum (&dp)[kSumsPerStep], uint32_t floats, uint32_t lse_floats) {
  const float inverse = capped ? capped_inverse(rows.cap) : 0.0f;
#pragma unroll
  for (int n = 0; n < kSumsPerStep; n++) {
    const float2 delta = shared_floats(floats + static_cast<uint32_t>(n * 32));
    float2 lse{};
    if constexpr (capped) lse = shared_floats(lse_floats + static_cast<uint32_t>(n * 32));
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float ds = s[n][j] * (dp[n][j] - (j % 2 ? delta.y : delta.x));
      s[n][j] = capped ? ds * cap_slope(s[n][j], kLog2E * (j % 2 ? lse.y : lse.x), inverse) : ds;
    }
  }
}

// Computes the sums of weights times dout, and of ds times queries. A step's second product and the next one's first
// run while its weights are computed; both have their factors in shared memory. A product whose left factor is in
// registers keeps its warpgroup until it is almost done, so that it would not run beside them.
template <bool capped, int D, Gradients what>
__device__ void sum_keys_and_values(GradientTiles<D, what>& tiles, const KeyRows<capped>& rows, Sum (&dk)[D / 8],
                                    Sum (&dv)[D / 8]) {
  static_assert(kPaired<D>);
  if (rows.all_steps == 0) {
    tiles.stationary.release();
    return;
  }
  Sum even[kSumsPerStep], odd[kSumsPerStep], dp[kSumsPerStep];
  Fragment p[kRowsPerStep / 16], ds[kRowsPerStep / 16];
  auto slot = tiles;  // of the step whose second product began last
  int at = rows.first;
  const auto start_scores = [&](Sum(&s)[kSumsPerStep]) {
    tiles.first.await_full();
    begin_products();
    start_transposed<D>(s, tiles.stationary_first(), tiles.first_at());
    commit_products();
  };
  const auto start_dp = [&] {
    slot = tiles;
    tiles.first.advance();
    start_transposed<D>(dp, tiles.stationary_second(), slot.second_at());
    commit_products();
  };
  const auto add_values = [&](Sum(&s)[kSumsPerStep]) {
    rows.compute_p(s, at, thread_floats(slot.lse_at()));
    at = rows.next(at);
    round_to_left(p, s);
    start_add<D>(dv, p, slot.second_at());
    commit_products();
  };
  const auto add_keys = [&](Sum(&s)[kSumsPerStep]) {
    fence(dp);
    compute_transposed_ds(rows, s, dp, thread_floats(slot.delta_at()), thread_floats(slot.lse_at()));
    round_to_left(ds, s);
    start_add<D>(dk, ds, slot.first_at());
    commit_products();
  };
  const auto work = [&](Sum(&s)[kSumsPerStep], Sum(&next)[kSumsPerStep]) {
    start_scores(next);
    add_values(s);
    wait_products<2>();
    add_keys(s);
    const auto before = slot.first;
    start_dp();
    wait_products<1>();
    fence(next);
    fence(dk);
    fence(dv);
    before.release();
  };
  const auto finish = [&](Sum(&s)[kSumsPerStep]) {
    add_values(s);
    wait_products<1>();
    tiles.stationary.release();
    add_keys(s);
    wait_products<0>();
    fence(dk);
    fence(dv);
    slot.first.release();
  };
  start_scores(even);
  start_dp();
  wait_products<1>();
  fence(even);
  for (int i = 0;; i += 2) {
    if (i + 1 == rows.all_steps) {
      finish(even);
      break;
    }
    work(even, odd);
    if (i + 2 == rows.all_steps) {
      finish(odd);
      break;
    }
    work(odd, even);
  }
}

// Computes both with registers for one step's scores, for heads of more than 96.
template <bool capped, int D, Gradients what>
__device__ void sum_wide_keys_and_values(GradientTiles<D, what>& tiles, const KeyRows<capped>& rows, Sum (&dk)[D / 8],
                                         Sum (&dv)[D / 8]) {
  static_assert(kPaired<D>);
  Fragment p[kRowsPerStep / 16], ds[kRowsPerStep / 16];
  for (int i = 0, at = rows.first; i < rows.all_steps; i++, at = rows.next(at)) {
    const uint32_t queries = tiles.first_at(), gradients = tiles.second_at();
    Sum s[kSumsPerStep], dp[kSumsPerStep];
    tiles.first.await_full();
    begin_products();
    start_transposed<D>(s, tiles.stationary_first(), queries);
    commit_products();
    start_transposed<D>(dp, tiles.stationary_second(), gradients);
    commit_products();
    wait_products<1>();
    fence(s);
    rows.compute_p(s, at, thread_floats(tiles.lse_at()));
    round_to_left(p, s);
    start_add<D>(dv, p, gradients);
    commit_products();
    wait_products<1>();
    fence(dp);
    if (i + 1 == rows.all_steps) tiles.stationary.release();
    compute_transposed_ds(rows, s, dp, thread_floats(tiles.delta_at()), thread_floats(tiles.lse_at()));
    round_to_left(ds, s);
    start_add<D>(dk, ds, queries);
    commit_products();
    wait_products<0>();
    fence(dk);
    fence(dv);
    tiles.first.release();
    tiles.first.advance();
  }
  if (rows.steps == 0) tiles.stationary.release();
}

template <bool capped, int D, Gradients what>
__device__ void sum_values(GradientTiles<D, what>& tiles, const KeyRows<capped>& rows, Sum (&dv)[D / 8]) {
  if (rows.steps == 0) {
    tiles.stationary.release();
    return;
  }
  Sum s[kSumsPerStep];
  Fragment p[kRowsPerStep / 16];
  const auto start_scores = [&] {
    tiles.first.await_full();
    begin_products();
    start_transposed<D>(s, tiles.stationary_first(), tiles.first_at());
    commit_products();
  };
  int at = rows.first;
  const auto compute_p = [&](int i) {
    fence(s);
    if (i + 1 == rows.all_steps) tiles.stationary.release();
    rows.compute_p(s, at, thread_floats(tiles.lse_at()));
    at = rows.next(at);
    tiles.first.release();
    tiles.first.advance();
  };
  const auto start_values = [&] {
    tiles.second.await_full();
    start_add<D>(dv, p, tiles.second_at());
    commit_products();
  };
  const auto finish_values = [&] {
    wait_products<0>();
    fence(dv);
    tiles.second.release();
    tiles.second.advance();
  };
  start_scores();
  wait_products<0>();
  compute_p(0);
  round_to_left(p, s);
  for (int i = 1; i < rows.all_steps; i++) {
    start_scores();
    start_values();
    wait_products<1>();
    compute_p(i);
    finish_values();
    round_to_left(p, s);
  }
  start_values();
  finish_values();
}

template <bool capped, int D, Gradients what>
__device__ void key_gradient(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
  const GradientRows& op = b.op;
  const KeyTile place = key_tile(op, tile.number);
  const KeyRows<capped> rows(op, b.documents, place.first, tile);
  const int64_t left = op.keys - place.first;
  const auto save_keys = [&](const Sum(&dk)[D / 8]) {
    save_sums<D, true>(op.dk.at(place.first, op.heads.key(place.head)), op.dk.stride, left, op.heads.dim, dk,
                       {op.scale, op.scale});
  };
  const auto save_values = [&](const Sum(&dv)[D / 8]) {
    save_sums<D, true>(op.dv.at(place.first, op.heads.value(place.head)), op.dv.stride, left, op.heads.value_dim, dv,
                       {1.0f, 1.0f});
  };
  if constexpr (what == Gradients::OfKeysAndValues) {
    Sum dk[D / 8] = {}, dv[D / 8] = {};
    if constexpr (D <= 96)
      sum_keys_and_values(tiles, rows, dk, dv);
    else
      sum_wide_keys_and_values(tiles, rows, dk, dv);
    save_keys(dk);
    save_values(dv);
  } else if constexpr (what == Gradients::OfKeys) {
    Sum dk[D / 8] = {};
    int at = rows.first;
    const auto compute_p = [&](int, Sum(&s)[kSumsPerStep]) {
      rows.compute_p(s, at, thread_floats(tiles.lse_at()));
      at = rows.next(at);
    };
    const auto compute_ds = [&](Sum(&s)[kSumsPerStep], const Sum(&dp)[kSumsPerStep]) {
      compute_transposed_ds(rows, s, dp, thread_floats(tiles.delta_at()), thread_floats(tiles.lse_at()));
    };
    if constexpr (D > 192)
      sum_wide_steps(tiles, rows.all_steps, dk, compute_p, compute_ds);
    else
      sum_steps(tiles, rows.all_steps, dk, compute_p, compute_ds);
    save_keys(dk);
  } else {
    Sum dv[D / 8] = {};
    sum_values(tiles, rows, dv);
    save_values(dv);
  }
}

template <bool capped>
struct Keys {
  static __device__ MaskBounds bounds(const Backward& b, int tile) {
    return mask_bounds<false>(key_tile(b.op, tile).first, kTileRows, b.op.mask(b.documents));
  }
  template <int D, Gradients what>
  static __device__ void fetch_stationary(const Backward& b, const GradientTiles<D, what>& tiles, int tile,
                                          uint32_t full) {
    const KeyTile place = key_tile(b.op, tile);
    fetch_rows<D>(tiles.stationary_first(), b.tile_k, place.head, place.first, kTileRows, full);
    if constexpr (kStationaryTiles<what> == 2)
      fetch_rows<D>(tiles.stationary_second(), b.tile_v, place.head, place.first, kTileRows, full);
  }
  template <int D, Gradients what>
  static __device__ void fetch(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
    fetch_for_keys(b, tiles, tile);
  }
  template <int D, Gradients what>
  static __device__ void compute(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
    key_gradient<capped>(b, tiles, tile);
  }
};

}  // namespace

std::vector<GradientLaunch> key_gradient_launches(int dim, float cap, cudaStream_t stream) {
  return dispatch_tile<kWarpgroupDims>(dim, cap, [&]<int D, bool capped>() -> std::vector<GradientLaunch> {
    if constexpr (D <= 128)
      return {gradient_launch<D, Gradients::OfKeysAndValues, Keys<capped>>(stream)};
    else
      return {gradient_launch<D, Gradients::OfKeys, Keys<capped>>(stream),
              gradient_launch<D, Gradients::OfValues, Keys<capped>>(stream)};
  });
}

}  // namespace snug::cuda
