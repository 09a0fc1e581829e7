// P = exp(scale S - lse), dP = dO V^T, dS = P (dP - delta), delta = sum of dO O:
//   dQ = scale dS K   by blocks of queries;   dK = scale dS^T Q, dV = P^T dO   by blocks of keys, which compute P
//   again.
#include "backend/cuda/attention_tiles.cuh"

namespace snug::cuda {
namespace {

using GradientRows = AttentionGradientRows<BFloat16>;

// A warp a token and head.
template <int D>
__global__ void __launch_bounds__(kTileThreads) delta_kernel(const __grid_constant__ GradientRows op) {
  const int64_t warp = int64_t{blockIdx.x} * kTileWarps + threadIdx.x / 32;
  const int64_t token = warp / op.heads.heads;
  const int head = static_cast<int>(warp % op.heads.heads), lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= op.tokens) return;
  float sum = 0;
  if (lane < D / 8) {
    const auto dout = load_floats<8>(op.dout.at(token, op.heads.query(head) + lane * 8));
    const auto out = load_floats<8>(op.out.at(token, op.heads.query(head) + lane * 8));
#pragma unroll
    for (int k = 0; k < 8; k++) sum = fmaf(dout[k], out[k], sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) op.delta[head * op.tokens + token] = sum;
}

template <int D>
inline constexpr int kQueryBytes = 4 * kStep* kPitch<D>* static_cast<int>(sizeof(BFloat16));

template <int D>
__global__ void __launch_bounds__(kTileThreads, 1)
    query_gradient_kernel(const __grid_constant__ GradientRows op, int documents) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto* const keys = reinterpret_cast<BFloat16*>(shared_bytes);  // two tiles each, one after the other
  BFloat16* const values = keys + 2 * kStep * kPitch<D>;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / op.heads.group();
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kOwn, tokens = static_cast<int>(op.tokens);

  fetch_tile<D>(keys, op.q.at(first, op.heads.query(head)), op.q.stride, kOwn, tokens - first);
  fetch_tile<D>(values, op.dout.at(first, op.heads.query(head)), op.dout.stride, kOwn, tokens - first);
  commit_fetches();
  int row[2], begin[2];
  own_rows(first, tokens, op.sight(documents), row, begin);
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (row[half] >= tokens) continue;
    lse[half] = *op.lse.at(head, row[half]) * kLog2E;
    delta[half] = op.delta[head * op.tokens + row[half]];
  }
  int least = min(begin[0], begin[1]);
  int largest = max(begin[0], begin[1]);
  extremes(least, largest);
  wait_fetches<0>();
  __syncthreads();
  Fragment queries[D / 16], gradients[D / 16];
#pragma unroll
  for (int k = 0; k < D / 16; k++) {
    load_left<D>(queries[k], keys, k);
    load_left<D>(gradients[k], values, k);
  }
  __syncthreads();

  const int steps = steps_over<kStep>(first, least, tokens);
  const auto fetch = [&](int step) {
    const int at = least + step * kStep, offset = step % 2 * kStep * kPitch<D>;
    fetch_tile<D>(keys + offset, op.k.at(at, op.heads.key(kv_head)), op.k.stride, kStep, tokens - at);
    fetch_tile<D>(values + offset, op.v.at(at, op.heads.key(kv_head)), op.v.stride, kStep, tokens - at);
    commit_fetches();
  };
  const float scale = op.scale * kLog2E;
  Sum dq[D / 8] = {};
  if (steps > 0) fetch(0);
  for (int step = 0; step < steps; step++) {
    if (step + 1 < steps) {
      fetch(step + 1);
      wait_fetches<1>();
    } else {
      wait_fetches<0>();
    }
    __syncthreads();
    const int at = least + step * kStep, offset = step % 2 * kStep * kPitch<D>;
    Sum s[kSteps] = {}, dp[kSteps] = {};
    multiply_turned<D>(s, kept_left(queries), keys + offset);
    multiply_turned<D>(dp, kept_left(gradients), values + offset);
    const bool all = at + kStep <= first && at >= largest;
#pragma unroll
    for (int n = 0; n < kSteps; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int key = at + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
        const bool seen = all || (key <= row[i / 2] && key >= begin[i / 2]);
        s[n][i] = seen ? power_of_two(fmaf(s[n][i], scale, -lse[i / 2])) * (dp[n][i] - delta[i / 2]) : 0.0f;
      }
    multiply_add<D>(dq, s, keys + offset);
    __syncthreads();
  }
  save_sums<D>(op.dq.at(first, op.heads.query(head)), op.dq.stride, tokens - first, dq, {op.scale, op.scale});
}

// With steps of so many queries, which change no bit.
template <int D, int rows>
inline constexpr int kKeyBytes = (2 * kOwn + 4 * rows) * kPitch<D>* static_cast<int>(sizeof(BFloat16)) +
                                 4 * rows* static_cast<int>(sizeof(float));

template <int D, int rows>
__global__ void __launch_bounds__(kTileThreads, 1)
    key_gradient_kernel(const __grid_constant__ GradientRows op, int documents) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto* const keys = reinterpret_cast<BFloat16*>(shared_bytes);
  BFloat16 *const values = keys + kOwn * kPitch<D>, *const queries = values + kOwn * kPitch<D>;
  BFloat16* const gradients = queries + 2 * rows * kPitch<D>;  // two tiles each, one after the other
  auto* const lse = reinterpret_cast<float*>(gradients + 2 * rows * kPitch<D>);
  float* const delta = lse + 2 * rows;
  const int kv_head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kOwn;
  const int tokens = static_cast<int>(op.tokens);

  fetch_tile<D>(keys, op.k.at(first, op.heads.key(kv_head)), op.k.stride, kOwn, tokens - first);
  fetch_tile<D>(values, op.v.at(first, op.heads.key(kv_head)), op.v.stride, kOwn, tokens - first);
  const Sight sight = op.sight(documents);
  int row[2], end[2];  // where those that see a row end; none see a row outside documents
#pragma unroll
  for (int half = 0; half < 2; half++) {
    row[half] = first + own_row(half);
    end[half] = sight.end_of_seers(row[half]);
  }
  int least = min(end[0], end[1]);
  int last = max(end[0], end[1]);
  extremes(least, last);

  const int steps = max(0, last - first + rows - 1) / rows, all_steps = steps * op.heads.group();
  const auto fetch = [&](int i) {
    const int head = kv_head * op.heads.group() + i / steps, at = first + i % steps * rows;
    const int offset = i % 2 * rows * kPitch<D>;
    fetch_tile<D>(queries + offset, op.q.at(at, op.heads.query(head)), op.q.stride, rows, tokens - at);
    fetch_tile<D>(gradients + offset, op.dout.at(at, op.heads.query(head)), op.dout.stride, rows, tokens - at);
    commit_fetches();
    const int t = static_cast<int>(threadIdx.x);
    if (t >= rows) return;
    const bool inside = at + t < tokens;
    lse[i % 2 * rows + t] = inside ? *op.lse.at(head, at + t) * kLog2E : 0.0f;
    delta[i % 2 * rows + t] = inside ? op.delta[head * op.tokens + at + t] : 0.0f;
  };
  const float scale = op.scale * kLog2E;
  Sum dk[D / 8] = {}, dv[D / 8] = {};
  if (all_steps > 0) fetch(0);
  for (int i = 0; i < all_steps; i++) {
    if (i + 1 < all_steps) {
      fetch(i + 1);
      wait_fetches<1>();
    } else {
      wait_fetches<0>();
    }
    __syncthreads();
    const int at = first + i % steps * rows, offset = i % 2 * rows * kPitch<D>;
    // Rows are keys here, columns queries.
    Sum p[rows / 8] = {}, dp[rows / 8] = {};
    multiply_turned<D>(
        p, [&](int k, Fragment& a) { load_left<D>(a, keys, k); }, queries + offset);
    multiply_turned<D>(
        dp, [&](int k, Fragment& a) { load_left<D>(a, values, k); }, gradients + offset);
    const bool all = at >= first + kOwn && at + rows <= least;
#pragma unroll
    for (int n = 0; n < rows / 8; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int col = n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2, query = at + col;
        const bool seen = all || (query >= row[j / 2] && query < end[j / 2]);
        p[n][j] = seen ? power_of_two(fmaf(p[n][j], scale, -lse[i % 2 * rows + col])) : 0.0f;
        dp[n][j] = p[n][j] * (dp[n][j] - delta[i % 2 * rows + col]);
      }
    multiply_add<D>(dv, p, gradients + offset);
    multiply_add<D>(dk, dp, queries + offset);
    __syncthreads();
  }
  wait_fetches<0>();
  save_sums<D>(op.dk.at(first, op.heads.key(kv_head)), op.dk.stride, tokens - first, dk, {op.scale, op.scale});
  save_sums<D>(op.dv.at(first, op.heads.key(kv_head)), op.dv.stride, tokens - first, dv, {1.0f, 1.0f});
}

}  // namespace

void launch_delta(const GradientRows& op, cudaStream_t stream) {
  dispatch_dim(op.heads.dim, [&]<int D>() {
    delta_kernel<D><<<blocks_of(op.tokens * op.heads.heads, kTileWarps), kTileThreads, 0, stream>>>(op);
  });
}

AttentionLaunch tiled_attention_gradient(const GradientRows& op, cudaStream_t stream) {
  AttentionLaunch launch;
  const unsigned tiles = blocks_of(op.tokens, kOwn);
  const dim3 queries(tiles, static_cast<unsigned>(op.heads.heads)),
      keys(tiles, static_cast<unsigned>(op.heads.kv_heads));
  const auto bind = [&]<int D, int rows>() {
    allow_shared(key_gradient_kernel<D, rows>, kKeyBytes<D, rows>);
    allow_shared(query_gradient_kernel<D>, kQueryBytes<D>);
    launch = [=](int documents) {
      launch_delta(op, stream);
      key_gradient_kernel<D, rows><<<keys, kTileThreads, kKeyBytes<D, rows>, stream>>>(op, documents);
      query_gradient_kernel<D><<<queries, kTileThreads, kQueryBytes<D>, stream>>>(op, documents);
      check_launch("attention_backward");
    };
  };
  dispatch_dim(op.heads.dim, [&]<int D>() {
    // Heads of 128 take 137 KiB in steps of kStep: an A100 has them, cards for gaming (8.6, 8.9, 12.0) have 99.
    if (blocks_that_fit(key_gradient_kernel<D, kStep>, kTileThreads, kKeyBytes<D, kStep>) > 0)
      bind.template operator()<D, kStep>();
    else
      bind.template operator()<D, 16>();
  });
  return launch;
}

}  // namespace snug::cuda
