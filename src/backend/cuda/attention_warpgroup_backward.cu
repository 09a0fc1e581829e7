// attention_backward.cu by warpgroups. A product of one step runs while the weights of the next are computed; the tile
// that it reads is the last but one of three that tiles are fetched into.
#include "backend/cuda/attention_softmax.cuh"
#include "backend/cuda/attention_warpgroup.cuh"

namespace snug::cuda {
namespace {

using GradientRows = AttentionGradientRows<BFloat16>;

constexpr int kStages = 3;

// Two tiles of kStep rows, and one float a row from two vectors.
template <int D>
inline constexpr int kStageBytes = 2 * kStep* kBytesPerRow<D> + kTileAlignment;
template <int D>
inline constexpr int kOwnBytes = kOwn* kBytesPerRow<D>;
template <int D>
inline constexpr int kSharedBytes = kTileAlignment + kStages* kStageBytes<D> + 2 * kOwnBytes<D>;

template <int D>
__global__ void __launch_bounds__(kTileThreads, 1)
    query_gradient_kernel(const __grid_constant__ GradientRows op, int documents) {
  const uint32_t queries = tiles_start(), gradients = queries + kOwnBytes<D>, stages = gradients + kOwnBytes<D>;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / op.heads.group();
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kOwn, tokens = static_cast<int>(op.tokens);

  fetch_panels<D, kOwn>(queries, op.qkv.at(first, op.heads.query(head)), op.qkv.stride, tokens - first);
  fetch_panels<D, kOwn>(gradients, op.dout.at(first, op.heads.query(head)), op.dout.stride, tokens - first);
  int row[2], begin[2];
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    row[half] = first + own_row(half);
    const Document document = document_of(row[half], op.starts, documents);
    begin[half] = document.end > document.begin ? static_cast<int>(document.begin) : tokens;
    if (row[half] >= tokens) continue;
    lse[half] = *op.lse.at(head, row[half]) * kLog2E;
    delta[half] = op.delta[head * op.tokens + row[half]];
  }
  int least = min(begin[0], begin[1]);
  int largest = max(begin[0], begin[1]);
  extremes(least, largest);

  const int end = min(first + kOwn, tokens), steps = max(0, end - least + kStep - 1) / kStep;
  const auto keys_of = [&](int step) { return stages + static_cast<uint32_t>(step % kStages * kStageBytes<D>); };
  const auto fetch = [&](int step) {
    const int at = least + step * kStep;
    const uint32_t keys = keys_of(step), values = keys + kStep * kBytesPerRow<D>;
    fetch_panels<D, kStep>(keys, op.qkv.at(at, op.heads.key(kv_head)), op.qkv.stride, tokens - at);
    fetch_panels<D, kStep>(values, op.qkv.at(at, op.heads.value(kv_head)), op.qkv.stride, tokens - at);
    commit_fetches();
  };
  const float scale = op.scale * kLog2E;
  Sum dq[D / 8] = {};
  Fragment ds[kStep / 16];
  if (steps > 0) fetch(0);
  for (int step = 0; step < steps; step++) {
    await_tiles();
    const int at = least + step * kStep;
    Sum s[kSteps], dp[kSteps];
    begin_products();
    start_turned<D>(s, queries, keys_of(step));
    commit_products();
    start_turned<D>(dp, gradients, keys_of(step) + kStep * kBytesPerRow<D>);
    commit_products();
    if (step > 0) start_add<D>(dq, ds, keys_of(step - 1));
    commit_products();
    if (step + 1 < steps) fetch(step + 1);
    wait_products<2>();
    settle(s);
    if (at + kStep > first || at < largest) hide_unseen(s, at, row, begin);
#pragma unroll
    for (int n = 0; n < kSteps; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = power_of_two(fmaf(s[n][i], scale, -lse[i / 2]));
    wait_products<1>();
    settle(dp);
#pragma unroll
    for (int n = 0; n < kSteps; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] *= dp[n][i] - delta[i / 2];
    wait_products<0>();
    settle(dq);
    round_to_left(ds, s);
  }
  if (steps > 0) {
    start_add<D>(dq, ds, keys_of(steps - 1));
    commit_products();
    wait_products<0>();
    settle(dq);
  }
  save_sums<D>(op.dqkv.at(first, op.heads.query(head)), op.dqkv.stride, tokens - first, dq, {op.scale, op.scale});
}

// Of products with the queries from `at` on: those before the key, and those after its document.
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
__global__ void __launch_bounds__(kTileThreads, 1)
    key_gradient_kernel(const __grid_constant__ GradientRows op, int documents) {
  const uint32_t keys = tiles_start(), values = keys + kOwnBytes<D>, stages = values + kOwnBytes<D>;
  const int kv_head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kOwn;
  const int tokens = static_cast<int>(op.tokens), thread = static_cast<int>(threadIdx.x);
  fetch_panels<D, kOwn>(keys, op.qkv.at(first, op.heads.key(kv_head)), op.qkv.stride, tokens - first);
  fetch_panels<D, kOwn>(values, op.qkv.at(first, op.heads.value(kv_head)), op.qkv.stride, tokens - first);
  int row[2], end[2];  // the tokens of the document; none see a row outside documents
#pragma unroll
  for (int half = 0; half < 2; half++) {
    row[half] = first + own_row(half);
    end[half] = static_cast<int>(document_of(row[half], op.starts, documents).end);
  }
  int least = min(end[0], end[1]), last = max(end[0], end[1]);
  extremes(least, last);

  const int steps = max(0, last - first + kStep - 1) / kStep, all_steps = steps * op.heads.group();
  const auto stage_of = [&](int i) { return stages + static_cast<uint32_t>(i % kStages * kStageBytes<D>); };
  const auto fetch = [&](int i) {
    const int head = kv_head * op.heads.group() + i / steps, at = first + i % steps * kStep;
    const uint32_t queries = stage_of(i), gradients = queries + kStep * kBytesPerRow<D>;
    fetch_panels<D, kStep>(queries, op.qkv.at(at, op.heads.query(head)), op.qkv.stride, tokens - at);
    fetch_panels<D, kStep>(gradients, op.dout.at(at, op.heads.query(head)), op.dout.stride, tokens - at);
    if (thread < 2 * kStep) {
      const int query = at + thread % kStep, inside = query < tokens;
      const float* const from =
          thread < kStep ? op.lse.at(head, inside ? query : 0) : op.delta + head * op.tokens + (inside ? query : 0);
      fetch_float(gradients + kStep * kBytesPerRow<D> + static_cast<uint32_t>(thread) * 4, from, inside);
    }
    commit_fetches();
  };
  const float scale = op.scale * kLog2E;
  Sum dk[D / 8] = {}, dv[D / 8] = {};
  Fragment p[kStep / 16], ds[kStep / 16];
  if (all_steps > 0) fetch(0);
  for (int i = 0; i < all_steps; i++) {
    await_tiles();
    const int at = first + i % steps * kStep;
    const uint32_t queries = stage_of(i), gradients = queries + kStep * kBytesPerRow<D>;
    const uint32_t floats = gradients + kStep * kBytesPerRow<D> + static_cast<uint32_t>(thread) % 4 * 8;
    Sum s[kSteps], dp[kSteps];  // rows are keys here, columns queries
    begin_products();
    start_turned<D>(s, keys, queries);
    commit_products();
    start_turned<D>(dp, values, gradients);
    commit_products();
    if (i + 1 < all_steps) fetch(i + 1);
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
#pragma unroll
    for (int n = 0; n < kSteps; n++) {
      const float2 delta = shared_floats(floats + static_cast<uint32_t>(kStep * 4 + n * 32));
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] *= dp[n][j] - (j % 2 ? delta.y : delta.x);
    }
    round_to_left(ds, s);
    start_add<D>(dk, ds, queries);
    commit_products();
  }
  wait_products<0>();
  wait_fetches<0>();
  settle(dk);
  settle(dv);
  save_sums<D>(op.dqkv.at(first, op.heads.key(kv_head)), op.dqkv.stride, tokens - first, dk, {op.scale, op.scale});
  save_sums<D>(op.dqkv.at(first, op.heads.value(kv_head)), op.dqkv.stride, tokens - first, dv, {1.0f, 1.0f});
}

template <int D>
void launch(const GradientRows& op, int documents, cudaStream_t stream) {
  const unsigned tiles = blocks_of(op.tokens, kOwn);
  launch_delta(op, stream);
  const dim3 queries(tiles, static_cast<unsigned>(op.heads.heads)),
      keys(tiles, static_cast<unsigned>(op.heads.kv_heads));
  key_gradient_kernel<D><<<keys, kTileThreads, kSharedBytes<D>, stream>>>(op, documents);
  query_gradient_kernel<D><<<queries, kTileThreads, kSharedBytes<D>, stream>>>(op, documents);
  check_launch("attention_backward");
}

template <int D>
AttentionGradientKernel prepare() {
  allow_shared(key_gradient_kernel<D>, kSharedBytes<D>, "attention_backward");
  allow_shared(query_gradient_kernel<D>, kSharedBytes<D>, "attention_backward");
  return launch<D>;
}

}  // namespace

AttentionGradientKernel warpgroup_attention_gradient(int64_t dim) {
  if (!warpgroups()) return nullptr;
  return dim == 128 ? prepare<128>() : dim == 64 ? prepare<64>() : nullptr;
}

}  // namespace snug::cuda
