// attention_backward.cu by warpgroups. A product of one step runs while the weights of the next are computed.
#include "backend/cuda/attention_pipeline.cuh"
#include "backend/cuda/attention_softmax.cuh"
#include "backend/cuda/launches.cuh"

namespace snug::cuda {
namespace {

using GradientRows = AttentionGradientRows<BFloat16>;

constexpr int kStages = 4;

// A stage is two tiles of kStep rows, and one float a row from two vectors.
template <int D>
inline constexpr int kOwnBytes = kOwn* kBytesPerRow<D>;
template <int D>
inline constexpr int kTileBytes = kStep* kBytesPerRow<D>;
inline constexpr int kFloatBytes = kStep * static_cast<int>(sizeof(float));
template <int D>
inline constexpr int kStageBytes = 2 * kTileBytes<D> + kTileAlignment;
template <int D>
inline constexpr int kSharedBytes = kTileAlignment + kStages* kStageBytes<D> + 2 * kOwnBytes<D>;

struct Backward {
  GradientRows op;
  Panels q, k, v, dout, own_q, own_k, own_v, own_dout;  // in boxes of kStep and of kOwn rows
  int* next;                                            // the first tile that nobody has taken
  int documents;
};

// What both sides know of the tiles in shared memory.
template <int D>
struct Tiles {
  Ring<1> own;
  Ring<kStages> stages;
  uint32_t start;
  __device__ uint32_t first() const { return start; }
  __device__ uint32_t second() const { return start + kOwnBytes<D>; }
  __device__ uint32_t stage() const {
    return start + 2 * kOwnBytes<D> + static_cast<uint32_t>(stages.slot) * kStageBytes<D>;
  }
};

// ---- Gradients of the queries ---------------------------------------------------------------------------------------

template <int D>
__device__ void fetch_for_queries(const Backward& b, Tiles<D>& tiles, int tile, uint32_t own_full) {
  const GradientRows& op = b.op;
  const int tokens = static_cast<int>(op.tokens);
  const Tile place(tile, op.tokens, op.heads.heads, true);
  const int kv_head = place.head / op.heads.group();
  const int least = first_seen(place.first, tokens, op.sight(b.documents));
  const int steps = steps_over<kStep>(place.first, least, tokens);
  if (threadIdx.x % 32 != 0) return;
  arrive_and_expect(own_full, 2 * kOwnBytes<D>);
  fetch_rows<D>(tiles.first(), b.own_q, op.heads.query(place.head), place.first, kOwn, own_full);
  fetch_rows<D>(tiles.second(), b.own_dout, op.heads.query(place.head), place.first, kOwn, own_full);
  for (int step = 0; step < steps; step++) {
    const int at = least + step * kStep;
    tiles.stages.await_empty();
    const uint32_t full = tiles.stages.full(), keys = tiles.stage();
    arrive_and_expect(full, 2 * kTileBytes<D>);
    fetch_rows<D>(keys, b.k, op.heads.key(kv_head), at, kStep, full);
    fetch_rows<D>(keys + kTileBytes<D>, b.v, op.heads.key(kv_head), at, kStep, full);
    tiles.stages.advance();
  }
}

template <int D>
__device__ void query_gradient(const Backward& b, Tiles<D>& tiles, int tile) {
  const GradientRows& op = b.op;
  const Tile place(tile, op.tokens, op.heads.heads, true);
  const int first = place.first, tokens = static_cast<int>(op.tokens), head = place.head;
  int row[2], begin[2];
  const Sight sight = op.sight(b.documents);
  own_rows(first, tokens, sight, row, begin);
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (row[half] >= tokens) continue;
    lse[half] = *op.lse.at(head, row[half]) * kLog2E;
    delta[half] = op.delta[head * op.tokens + row[half]];
  }
  const int least = first_seen(first, tokens, sight);
  const int steps = steps_over<kStep>(first, least, tokens);
  const int largest = seen_by_all(first, tokens, sight);
  const float scale = op.scale * kLog2E;
  Sum dq[D / 8] = {};
  Fragment ds[kStep / 16];
  uint32_t keys_before = 0;
  Ring<kStages> before = tiles.stages;
  for (int step = 0; step < steps; step++) {
    const int at = least + step * kStep;
    const uint32_t keys = tiles.stage();
    Sum s[kSteps], dp[kSteps];
    tiles.stages.await_full();
    begin_products();
    start_turned<D>(s, tiles.first(), keys);
    commit_products();
    start_turned<D>(dp, tiles.second(), keys + kTileBytes<D>);
    commit_products();
    if (step > 0) start_add<D>(dq, ds, keys_before);
    commit_products();
    wait_products<2>();
    settle(s);
    if (at + kStep > first || at < largest) hide_unseen(s, at, row, begin);
#pragma unroll
    for (int n = 0; n < kSteps; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = power_of_two(fmaf(s[n][i], scale, -lse[i / 2]));
    wait_products<1>();
    settle(dp);
    if (step + 1 == steps) tiles.own.release();
#pragma unroll
    for (int n = 0; n < kSteps; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] *= dp[n][i] - delta[i / 2];
    wait_products<0>();
    settle(dq);
    if (step > 0) before.release();
    before = tiles.stages;
    keys_before = keys;
    tiles.stages.advance();
    round_to_left(ds, s);
  }
  if (steps > 0) {
    start_add<D>(dq, ds, keys_before);
    commit_products();
    wait_products<0>();
    settle(dq);
    before.release();
  } else {
    tiles.own.release();
  }
  save_sums<D>(op.dq.at(first, op.heads.query(head)), op.dq.stride, tokens - first, dq, {op.scale, op.scale});
}

// ---- Gradients of keys and values -----------------------------------------------------------------------------------

// Steps over the queries of one head that see rows from `first` on.
__device__ int key_steps(int first, int last) { return max(0, last - first + kStep - 1) / kStep; }

template <int D>
__device__ void fetch_for_keys(const Backward& b, Tiles<D>& tiles, int tile, uint32_t own_full) {
  const GradientRows& op = b.op;
  const int tokens = static_cast<int>(op.tokens), lane = static_cast<int>(threadIdx.x) % 32;
  const Tile place(tile, op.tokens, op.heads.kv_heads, false);
  const int steps = key_steps(place.first, last_seeing(place.first, op.sight(b.documents)));
  if (lane == 0) {
    arrive_and_expect(own_full, 2 * kOwnBytes<D>);
    fetch_rows<D>(tiles.first(), b.own_k, op.heads.key(place.head), place.first, kOwn, own_full);
    fetch_rows<D>(tiles.second(), b.own_v, op.heads.key(place.head), place.first, kOwn, own_full);
  }
  for (int i = 0; i < steps * op.heads.group(); i++) {
    const int head = place.head * op.heads.group() + i / steps, at = place.first + i % steps * kStep;
    tiles.stages.await_empty();
    const uint32_t full = tiles.stages.full(), queries = tiles.stage();
    if (lane == 0) {
      arrive_and_expect(full, 2 * kTileBytes<D>);
      fetch_rows<D>(queries, b.q, op.heads.query(head), at, kStep, full);
      fetch_rows<D>(queries + kTileBytes<D>, b.dout, op.heads.query(head), at, kStep, full);
    }
    const uint32_t floats = queries + 2 * kTileBytes<D> + static_cast<uint32_t>(lane) * 4;
#pragma unroll
    for (int part = 0; part < kStep; part += 32) {
      const int query = at + part + lane;
      const bool inside = query < tokens;
      fetch_float(floats + static_cast<uint32_t>(part) * 4, op.lse.at(head, inside ? query : 0), inside);
      fetch_float(floats + static_cast<uint32_t>(kStep + part) * 4, op.delta + head * op.tokens + (inside ? query : 0),
                  inside);
    }
    arrive_after_fetches(full);
    tiles.stages.advance();
  }
}

// Of products with the queries from `at` on: those before the key, and those that see it no more.
__device__ void hide_blind(Sum (&s)[kSteps], int at, const int (&row)[2], const int (&end)[2]) {
#pragma unroll
  for (int n = 0; n < kSteps; n++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int query = at + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2;
      if (query < row[j / 2] || query >= end[j / 2]) s[n][j] = -INFINITY;
    }
}

template <int D>
__device__ void key_gradient(const Backward& b, Tiles<D>& tiles, int tile) {
  const GradientRows& op = b.op;
  const Tile place(tile, op.tokens, op.heads.kv_heads, false);
  const int first = place.first, tokens = static_cast<int>(op.tokens);
  const Sight sight = op.sight(b.documents);
  int row[2], end[2];  // where those that see a row end; none see a row outside documents
#pragma unroll
  for (int half = 0; half < 2; half++) {
    row[half] = first + own_row(half);
    end[half] = sight.end_of_seers(row[half]);
  }
  const int least = all_seen_until(first, sight), steps = key_steps(first, last_seeing(first, sight));
  const float scale = op.scale * kLog2E;
  Sum dk[D / 8] = {}, dv[D / 8] = {};
  Fragment p[kStep / 16], ds[kStep / 16];
  const int all_steps = steps * op.heads.group();
  for (int i = 0; i < all_steps; i++) {
    const int at = first + i % steps * kStep;
    const uint32_t queries = tiles.stage(), gradients = queries + kTileBytes<D>;
    const uint32_t floats = gradients + kTileBytes<D> + threadIdx.x % 4 * 8;
    Sum s[kSteps], dp[kSteps];  // rows are keys here, columns queries
    tiles.stages.await_full();
    begin_products();
    start_turned<D>(s, tiles.first(), queries);
    commit_products();
    start_turned<D>(dp, tiles.second(), gradients);
    commit_products();
    wait_products<1>();
    settle(s);
    if (at < first + kOwn || at + kStep > least) hide_blind(s, at, row, end);
#pragma unroll
    for (int n = 0; n < kSteps; n++) {
      const float2 lse = shared_floats(floats + static_cast<uint32_t>(n * 32));
      const float base[2] = {-kLog2E * lse.x, -kLog2E * lse.y};
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] = power_of_two(fmaf(s[n][j], scale, base[j % 2]));
    }
    round_to_left(p, s);
    start_add<D>(dv, p, gradients);
    commit_products();
    wait_products<1>();
    settle(dp);
    if (i + 1 == all_steps) tiles.own.release();
#pragma unroll
    for (int n = 0; n < kSteps; n++) {
      const float2 delta = shared_floats(floats + static_cast<uint32_t>(kFloatBytes + n * 32));
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] *= dp[n][j] - (j % 2 ? delta.y : delta.x);
    }
    round_to_left(ds, s);
    start_add<D>(dk, ds, queries);
    commit_products();
    wait_products<0>();
    settle(dk);
    settle(dv);
    tiles.stages.release();
    tiles.stages.advance();
  }
  if (steps == 0) tiles.own.release();
  save_sums<D>(op.dk.at(first, op.heads.key(place.head)), op.dk.stride, tokens - first, dk, {op.scale, op.scale});
  save_sums<D>(op.dv.at(first, op.heads.key(place.head)), op.dv.stride, tokens - first, dv, {1.0f, 1.0f});
}

// ---- Kernels --------------------------------------------------------------------------------------------------------

// That of keys lets that of queries begin: a block of it on every multiprocessor whose tiles of keys have run out.
template <int D, bool of_keys>
__global__ void __launch_bounds__(kPipelineThreads, 1) gradient_kernel(const __grid_constant__ Backward b) {
  if constexpr (of_keys) let_next_begin();
  __shared__ uint64_t barriers[(Ring<1>::kBytes + Ring<kStages>::kBytes) / 8];
  __shared__ int taken;
  const uint32_t at = shared_address(barriers);
  Tiles<D> tiles{{at}, {at + Ring<1>::kBytes}, tiles_start()};
  if (threadIdx.x == 0) {
    tiles.own.make(1, kTileThreads);
    tiles.stages.make(of_keys ? 1 + 32 : 1, kTileThreads);
  }
  publish_barriers();
  const int count = Tile::count(b.op.tokens, of_keys ? b.op.heads.kv_heads : b.op.heads.heads);
  if (fetches()) {
    give_registers<kFetchRegisters>();
    if (threadIdx.x >= kTileThreads + 32) return;
    take_tiles(b.next, tiles.own, &taken, count, [&](int tile, uint32_t full) {
      if constexpr (of_keys)
        fetch_for_keys<D>(b, tiles, tile, full);
      else
        fetch_for_queries<D>(b, tiles, tile, full);
    });
  } else {
    take_registers<kProductRegisters>();
    work_on_tiles(tiles.own, &taken, count, [&](int tile) {
      if constexpr (of_keys)
        key_gradient<D>(b, tiles, tile);
      else
        query_gradient<D>(b, tiles, tile);
    });
    // Whoever waits for this kernel waits for both.
    if constexpr (!of_keys) await_kernel_before();
  }
}

template <int D>
AttentionLaunch prepare(const GradientRows& op, std::byte* counters, cudaStream_t stream) {
  allow_shared(gradient_kernel<D, true>, kSharedBytes<D>);
  allow_shared(gradient_kernel<D, false>, kSharedBytes<D>);
  const int64_t width = op.heads.query_width(), kv_width = op.heads.key_width();
  const auto panels = [&](const Rows<BFloat16>& rows, int64_t columns, int box) {
    return panels_of(rows, columns, op.tokens, box);
  };
  Backward keys{op,
                panels(op.q, width, kStep),
                panels(op.k, kv_width, kStep),
                panels(op.v, kv_width, kStep),
                panels(op.dout, width, kStep),
                panels(op.q, width, kOwn),
                panels(op.k, kv_width, kOwn),
                panels(op.v, kv_width, kOwn),
                panels(op.dout, width, kOwn),
                reinterpret_cast<int*>(counters),
                0};
  Backward queries = keys;
  queries.next++;
  const auto grid = static_cast<unsigned>(multiprocessors());
  return [=](int documents) mutable {
    keys.documents = queries.documents = documents;
    check_cuda(cudaMemsetAsync(keys.next, 0, 2 * sizeof(int), stream), "attention_backward");
    launch_delta(op, stream);
    gradient_kernel<D, true><<<grid, kPipelineThreads, kSharedBytes<D>, stream>>>(keys);
    check_launch("attention_backward");
    launch_early(gradient_kernel<D, false>, grid, kPipelineThreads, kSharedBytes<D>, stream, "attention_backward",
                 queries);
  };
}

}  // namespace

AttentionLaunch warpgroup_attention_gradient(const GradientRows& op, std::byte* counters, cudaStream_t stream) {
  return for_pipeline(op.heads.dim, [&]<int D>() { return prepare<D>(op, counters, stream); });
}

}  // namespace snug::cuda
