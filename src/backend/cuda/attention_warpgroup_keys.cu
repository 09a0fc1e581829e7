// Computes the gradients of keys and values by warpgroups.
#include "backend/cuda/attention_warpgroup_gradients.cuh"

namespace snug::cuda {
namespace {

// Returns the number of steps over the queries of one head that attend to rows from `first` on.
__device__ int key_steps(int first, int last) { return max(0, last - first + kStep - 1) / kStep; }

// Fetches a number for each of kStep tokens from `at` on, by a warp.
__device__ void fetch_floats(uint32_t to, const float* from, int at, int tokens) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int part = 0; part < kStep; part += 32) {
    const int token = at + part + lane;
    const bool inside = token < tokens;
    fetch_float(to + static_cast<uint32_t>(part + lane) * 4, from + (inside ? token : 0), inside);
  }
}

using KeyTile = Tile<kOwn>;
__device__ KeyTile key_tile(const GradientRows& op, int number) {
  return {number, op.tokens, op.heads.kv_heads, false};
}

template <int D, Gradients what>
__device__ void fetch_for_keys(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
  const GradientRows& op = b.op;
  const int tokens = static_cast<int>(op.tokens);
  const bool leads = threadIdx.x % 32 == 0;
  const KeyTile place = key_tile(op, tile.number);
  const int steps = key_steps(place.first, tile.least);
  for (int i = 0; i < steps * op.heads.group(); i++) {
    const int head = place.head * op.heads.group() + i / steps, at = place.first + i % steps * kStep;
    const auto fetch_first = [&] { fetch_rows<D>(tiles.first_at(), b.q, head, at, kStep, tiles.first.full()); };
    const auto fetch_second = [&] { fetch_rows<D>(tiles.second_at(), b.dout, head, at, kStep, tiles.second_full()); };
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

// Masks products with the queries from `at` on: those before the key, and those that no longer attend to it.
__device__ void hide_blind(Sum (&s)[kSteps], int at, const int (&row)[2], const int (&end)[2]) {
#pragma unroll
  for (int n = 0; n < kSteps; n++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int query = at + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2;
      if (query < row[j / 2] || query >= end[j / 2]) s[n][j] = -INFINITY;
    }
}

// Holds what a thread knows of its two rows of keys, and of the steps over the queries that attend to them.
struct KeyRows {
  __device__ KeyRows(const GradientRows& op, int documents, int first, const Reach& reach)
      : first(first), least(reach.all), steps(key_steps(first, reach.any)) {
    const Sight sight = op.sight(documents);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      row[half] = first + own_row(half);
      end[half] = reach.any == reach.all ? reach.any : sight.end_of_seers(row[half]);
    }
    all_steps = steps * op.heads.group();
    scale = op.scale * kLog2E;
  }
  // Returns the first query of the step after the one that begins at `at`; after a head's last it is the next head's
  // first.
  __device__ int next(int at) const { return at + kStep < first + steps * kStep ? at + kStep : first; }
  // Makes weights of products, rows of which are keys, columns queries from `at` on; `floats` are this thread's lse.
  __device__ void weigh(Sum (&s)[kSteps], int at, uint32_t floats) const {
    if (at < first + kOwn || at + kStep > least) hide_blind(s, at, row, end);
#pragma unroll
    for (int n = 0; n < kSteps; n++) {
      const float2 lse = shared_floats(floats + static_cast<uint32_t>(n * 32));
      const float base[2] = {-kLog2E * lse.x, -kLog2E * lse.y};
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] = power_of_two(fmaf(s[n][j], scale, base[j % 2]));
    }
  }
  // Holds where the tokens that attend to a row end; none attend to a row outside documents.
  int row[2], end[2];
  int first, least, steps, all_steps;
  float scale;
};

// Returns this thread's columns of numbers for a step's queries.
__device__ uint32_t own_floats(uint32_t floats) { return floats + threadIdx.x % 4 * 8; }

__device__ void differ_by(Sum (&s)[kSteps], const Sum (&dp)[kSteps], uint32_t floats) {
#pragma unroll
  for (int n = 0; n < kSteps; n++) {
    const float2 delta = shared_floats(floats + static_cast<uint32_t>(n * 32));
#pragma unroll
    for (int j = 0; j < 4; j++) s[n][j] *= dp[n][j] - (j % 2 ? delta.y : delta.x);
  }
}

template <int D, Gradients what>
__device__ void sum_keys_and_values(GradientTiles<D, what>& tiles, const KeyRows& rows, Sum (&dk)[D / 8],
                                    Sum (&dv)[D / 8]) {
  Fragment p[kStep / 16], ds[kStep / 16];
  for (int i = 0, at = rows.first; i < rows.all_steps; i++, at = rows.next(at)) {
    const uint32_t queries = tiles.first_at(), gradients = tiles.second_at();
    Sum s[kSteps], dp[kSteps];
    tiles.first.await_full();
    begin_products();
    start_turned<D>(s, tiles.own_first(), queries);
    commit_products();
    tiles.await_second();
    start_turned<D>(dp, tiles.own_second(), gradients);
    commit_products();
    wait_products<1>();
    settle(s);
    rows.weigh(s, at, own_floats(tiles.lse_at()));
    round_to_left(p, s);
    start_add<D>(dv, p, gradients);
    commit_products();
    wait_products<1>();
    settle(dp);
    if (i + 1 == rows.all_steps) tiles.own.release();
    differ_by(s, dp, own_floats(tiles.delta_at()));
    round_to_left(ds, s);
    start_add<D>(dk, ds, queries);
    commit_products();
    wait_products<0>();
    settle(dk);
    settle(dv);
    tiles.release_second();
    tiles.first.release();
    tiles.first.advance();
  }
  if (rows.steps == 0) tiles.own.release();
}

template <int D, Gradients what>
__device__ void sum_values(GradientTiles<D, what>& tiles, const KeyRows& rows, Sum (&dv)[D / 8]) {
  if (rows.steps == 0) {
    tiles.own.release();
    return;
  }
  Sum s[kSteps];
  Fragment p[kStep / 16];
  const auto start_scores = [&] {
    tiles.first.await_full();
    begin_products();
    start_turned<D>(s, tiles.own_first(), tiles.first_at());
    commit_products();
  };
  int at = rows.first;
  const auto weigh = [&](int i) {
    settle(s);
    if (i + 1 == rows.all_steps) tiles.own.release();
    rows.weigh(s, at, own_floats(tiles.lse_at()));
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
    settle(dv);
    tiles.second.release();
    tiles.second.advance();
  };
  start_scores();
  wait_products<0>();
  weigh(0);
  round_to_left(p, s);
  for (int i = 1; i < rows.all_steps; i++) {
    start_scores();
    start_values();
    wait_products<1>();
    weigh(i);
    finish_values();
    round_to_left(p, s);
  }
  start_values();
  finish_values();
}

template <int D, Gradients what>
__device__ void key_gradient(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
  const GradientRows& op = b.op;
  const KeyTile place = key_tile(op, tile.number);
  const KeyRows rows(op, b.documents, place.first, tile.reach);
  const auto save = [&](const Rows<BFloat16>& to, const Sum(&sums)[D / 8], float factor) {
    save_sums<D, true>(to.at(place.first, op.heads.key(place.head)), to.stride, op.tokens - place.first, op.heads.dim,
                       sums, {factor, factor});
  };
  if constexpr (what == Gradients::OfKeysAndValues) {
    Sum dk[D / 8] = {}, dv[D / 8] = {};
    sum_keys_and_values(tiles, rows, dk, dv);
    save(op.dk, dk, op.scale);
    save(op.dv, dv, 1.0f);
  } else if constexpr (what == Gradients::OfKeys) {
    Sum dk[D / 8] = {};
    int at = rows.first;
    const auto weigh = [&](int, Sum(&s)[kSteps]) {
      rows.weigh(s, at, own_floats(tiles.lse_at()));
      at = rows.next(at);
    };
    const auto differ = [&](Sum(&s)[kSteps], const Sum(&dp)[kSteps]) {
      differ_by(s, dp, own_floats(tiles.delta_at()));
    };
    if constexpr (D > 192)
      sum_wide_steps(tiles, rows.all_steps, dk, weigh, differ);
    else
      sum_steps(tiles, rows.all_steps, dk, weigh, differ);
    save(op.dk, dk, op.scale);
  } else {
    Sum dv[D / 8] = {};
    sum_values(tiles, rows, dv);
    save(op.dv, dv, 1.0f);
  }
}

struct Keys {
  static __device__ Reach reach(const Backward& b, int tile) {
    return last_seeing(key_tile(b.op, tile).first, kOwn, b.op.sight(b.documents));
  }
  template <int D, Gradients what>
  static __device__ void fetch_own(const Backward& b, const GradientTiles<D, what>& tiles, int tile, uint32_t full) {
    const KeyTile place = key_tile(b.op, tile);
    fetch_rows<D>(tiles.own_first(), b.own_k, place.head, place.first, kOwn, full);
    if constexpr (kOwnTiles<what> == 2) fetch_rows<D>(tiles.own_second(), b.own_v, place.head, place.first, kOwn, full);
  }
  template <int D, Gradients what>
  static __device__ void fetch(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
    fetch_for_keys(b, tiles, tile);
  }
  template <int D, Gradients what>
  static __device__ void compute(const Backward& b, GradientTiles<D, what>& tiles, const TakenTile& tile) {
    key_gradient(b, tiles, tile);
  }
};

}  // namespace

std::vector<GradientLaunch> key_gradient_launches(int dim, cudaStream_t stream) {
  return dispatch_dim<kWarpgroupDims>(dim, [&]<int D>() -> std::vector<GradientLaunch> {
    if constexpr (D <= 128)
      return {gradient_launch<D, Gradients::OfKeysAndValues, Keys>(stream)};
    else
      return {gradient_launch<D, Gradients::OfKeys, Keys>(stream),
              gradient_launch<D, Gradients::OfValues, Keys>(stream)};
  });
}

}  // namespace snug::cuda
