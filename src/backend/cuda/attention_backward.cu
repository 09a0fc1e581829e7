// Computes the gradients of attention. P = exp(scale S - lse), dP = dO V^T, dS = P (dP - delta), delta = sum of dO O:
//   dQ = scale dS K   by blocks of queries;   dK = scale dS^T Q, dV = P^T dO   by blocks of keys, which compute P
//   again.
#include "backend/cuda/attention_softmax.cuh"

namespace snug::cuda {
namespace {

using GradientRows = AttentionGradientRows<BFloat16>;

// Computes delta with `lanes` lanes for each token and head, N elements each at a time. Lanes without elements add
// zeros, so that their number changes no bit.
template <int N, int lanes>
__global__ void __launch_bounds__(kTileThreads) delta_kernel(const __grid_constant__ GradientRows op) {
  const int64_t row = int64_t{blockIdx.x} * (kTileThreads / lanes) + threadIdx.x / lanes;
  const int64_t token = row / op.heads.heads;
  const int head = static_cast<int>(row % op.heads.heads), lane = static_cast<int>(threadIdx.x) % lanes;
  const int dim = token < op.tokens ? op.heads.dim : 0;
  float sum = 0;
  for (int col = lane * N; col < dim; col += lanes * N) {
    const auto dout = load_floats<N>(op.dout.at(token, op.heads.query(head) + col));
    const auto out = load_floats<N>(op.out.at(token, op.heads.query(head) + col));
#pragma unroll
    for (int k = 0; k < N; k++) sum = fmaf(dout[k], out[k], sum);
  }
  sum = warp_sum<lanes>(sum);
  if (lane == 0 && dim > 0) op.delta[head * op.tokens + token] = sum;
}

// This is the number of columns of dQ and of dK that a block sums. For the widest heads it is a part of them, as a
// thread lacks the registers for all beside the left factors, whose products every part computes again.
template <int D>
inline constexpr int kColumns = D > 192 ? D / 2 : D;
template <int D>
inline constexpr unsigned kParts = D / kColumns<D>;

template <int D>
inline constexpr int kQueryBytes = 4 * kRowsPerStepOf<D>* kPitch<D>* static_cast<int>(sizeof(BFloat16));

// Loads a tile's rows, 16 a warp, into registers as left factors.
template <int D>
__device__ void load_left_rows(Fragment (&fragments)[D / 16], const BFloat16* tile) {
#pragma unroll
  for (int k = 0; k < D / 16; k++) load_left<D>(fragments[k], tile, k);
}

template <int D>
__global__ void __launch_bounds__(kTileThreads, 1)
    query_gradient_kernel(const __grid_constant__ GradientRows op, int documents) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  constexpr int kRows = kRowsPerStepOf<D>;
  auto* const keys = reinterpret_cast<BFloat16*>(shared_bytes);  // two tiles each, one after the other
  BFloat16* const values = keys + 2 * kRows * kPitch<D>;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / op.heads.group(), dim = op.heads.dim;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows, tokens = static_cast<int>(op.tokens);

  const auto fetch_stationary = [&](BFloat16* tile, const Rows<BFloat16>& from) {
    fetch_tile<D>(tile, from.at(first, op.heads.query(head)), from.stride, kTileRows, tokens - first, dim);
  };
  constexpr bool kBoth = 2 * kRows >= kTileRows;  // there is room for both
  fetch_stationary(keys, op.q);
  if constexpr (kBoth) fetch_stationary(values, op.dout);
  commit_fetches();
  int row[2], begin[2];
  thread_rows(first, tokens, op.mask(documents), row, begin);
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (row[half] >= tokens) continue;
    lse[half] = *op.lse.at(head, row[half]) * kLog2E;
    delta[half] = op.delta[head * op.tokens + row[half]];
  }
  int least = min(begin[0], begin[1]);
  int largest = max(begin[0], begin[1]);
  block_min_max(least, largest);
  wait_fetches<0>();
  __syncthreads();
  Fragment queries[D / 16], gradients[D / 16];
  load_left_rows<D>(queries, keys);
  if constexpr (!kBoth) {
    __syncthreads();
    fetch_stationary(keys, op.dout);
    commit_fetches();
    wait_fetches<0>();
    __syncthreads();
  }
  load_left_rows<D>(gradients, kBoth ? values : keys);
  __syncthreads();

  const int steps = steps_over<kRows>(first, least, tokens), part = static_cast<int>(blockIdx.z) * kColumns<D>;
  const auto fetch = [&](int step) {
    const int at = least + step * kRows, offset = step % 2 * kRows * kPitch<D>;
    fetch_tile<D>(keys + offset, op.k.at(at, op.heads.key(kv_head)), op.k.stride, kRows, tokens - at, dim);
    fetch_tile<D>(values + offset, op.v.at(at, op.heads.key(kv_head)), op.v.stride, kRows, tokens - at, dim);
    commit_fetches();
  };
  const float scale = op.scale * kLog2E, inverse = op.cap > 0 ? capped_inverse(op.cap) : 0.0f;
  Sum dq[kColumns<D> / 8] = {};
  if (steps > 0) fetch(0);
  for (int step = 0; step < steps; step++) {
    await_step(step, steps, fetch);
    const int at = least + step * kRows, offset = step % 2 * kRows * kPitch<D>;
    Sum s[kRows / 8] = {}, dp[kRows / 8] = {};
    multiply_transposed<D>(s, left_in_registers(queries), keys + offset);
    multiply_transposed<D>(dp, left_in_registers(gradients), values + offset);
    if (op.cap > 0) apply_cap(s, op.scale, op.cap);
    const bool all = at + kRows <= first && at >= largest;
#pragma unroll
    for (int n = 0; n < kRows / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int key = at + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
        const bool visible = all || (key <= row[i / 2] && key >= begin[i / 2]);
        const float p = visible ? power_of_two(fmaf(s[n][i], scale, -lse[i / 2])) : 0.0f;
        s[n][i] = p * (dp[n][i] - delta[i / 2]);
        if (op.cap > 0) s[n][i] *= cap_slope(p, lse[i / 2], inverse);
      }
    multiply_add<D, kColumns<D>>(dq, s, keys + offset + part);
    __syncthreads();
  }
  save_sums<kColumns<D>>(op.dq.at(first, op.heads.query(head) + part), op.dq.stride, tokens - first, dim - part, dq,
                         {op.scale, op.scale});
}

// Says whether the stationary operands, the block's tiles of keys and values, stay in registers, as those of wide heads
// do, or in shared memory.
template <int D>
inline constexpr bool kStationaryInRegisters = D > 128;
// This is the shared memory of steps of `rows` queries, whose number changes no bit.
template <int D, int rows>
inline constexpr int kKeyBytes =
    ((kStationaryInRegisters<D> ? 0 : 2 * kTileRows) + 4 * rows) * kPitch<D>* static_cast<int>(sizeof(BFloat16)) +
    4 * rows* static_cast<int>(sizeof(float));

// Gives the rows of a stationary operand as left factors.
template <int D>
struct StationaryRows {
  __device__ void operator()(int k, Fragment& a) const {
    if constexpr (kStationaryInRegisters<D>)
      left_in_registers(fragments)(k, a);
    else
      load_left<D>(a, tile, k);
  }
  const BFloat16* tile;
  Fragment fragments[kStationaryInRegisters<D> ? D / 16 : 1];
};

// Fetches the block's rows of a stationary operand. If they stay in registers, they come through the tile, which is
// free again afterwards; if not, they are there once everything that was fetched is.
template <int D>
__device__ void fetch_stationary(StationaryRows<D>& operand, const Rows<BFloat16>& from, int first, int column,
                                 int tokens, int dim, BFloat16* tile) {
  operand.tile = tile;
  fetch_tile<D>(tile, from.at(first, column), from.stride, kTileRows, tokens - first, dim);
  if constexpr (kStationaryInRegisters<D>) {
    commit_fetches();
    wait_fetches<0>();
    __syncthreads();
    load_left_rows<D>(operand.fragments, tile);
    __syncthreads();
  }
}

// Computes dK, dV, or both: for wide heads there are registers for one of them.
template <int D, int rows, bool of_keys, bool of_values>
__global__ void __launch_bounds__(kTileThreads, 1)
    key_gradient_kernel(const __grid_constant__ GradientRows op, int documents) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  static_assert(!kStationaryInRegisters<D> || 4 * rows >= kTileRows,
                "stationary rows come through the tiles of queries");
  auto* const stationary = reinterpret_cast<BFloat16*>(shared_bytes);
  BFloat16* const queries = stationary + (kStationaryInRegisters<D> ? 0 : 2 * kTileRows * kPitch<D>);
  BFloat16* const gradients = queries + 2 * rows * kPitch<D>;  // two tiles each, one after the other
  auto* const lse = reinterpret_cast<float*>(gradients + 2 * rows * kPitch<D>);
  float* const delta = lse + 2 * rows;
  const int kv_head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kTileRows;
  const int tokens = static_cast<int>(op.tokens), dim = op.heads.dim, column = op.heads.key(kv_head);

  StationaryRows<D> keys, values;
  fetch_stationary(keys, op.k, first, column, tokens, dim, stationary);
  if constexpr (of_keys)
    fetch_stationary(values, op.v, first, column, tokens, dim,
                     stationary + (kStationaryInRegisters<D> ? 0 : kTileRows * kPitch<D>));
  const AttentionMask mask = op.mask(documents);
  int row[2], end[2];  // ends of the queries that attend to a row; none attend to a row outside documents
#pragma unroll
  for (int half = 0; half < 2; half++) {
    row[half] = first + thread_row(half);
    end[half] = mask.last_query_end(row[half]);
  }
  int least = min(end[0], end[1]);
  int last = max(end[0], end[1]);
  block_min_max(least, last);

  const int steps = max(0, last - first + rows - 1) / rows, all_steps = steps * op.heads.group();
  const auto fetch = [&](int i) {
    const int head = kv_head * op.heads.group() + i / steps, at = first + i % steps * rows;
    const int offset = i % 2 * rows * kPitch<D>;
    fetch_tile<D>(queries + offset, op.q.at(at, op.heads.query(head)), op.q.stride, rows, tokens - at, dim);
    fetch_tile<D>(gradients + offset, op.dout.at(at, op.heads.query(head)), op.dout.stride, rows, tokens - at, dim);
    commit_fetches();
    const int t = static_cast<int>(threadIdx.x);
    if (t >= rows) return;
    const bool inside = at + t < tokens;
    lse[i % 2 * rows + t] = inside ? *op.lse.at(head, at + t) * kLog2E : 0.0f;
    delta[i % 2 * rows + t] = inside ? op.delta[head * op.tokens + at + t] : 0.0f;
  };
  const float scale = op.scale * kLog2E, inverse = op.cap > 0 ? capped_inverse(op.cap) : 0.0f;
  const int part = of_values ? 0 : static_cast<int>(blockIdx.z) * kColumns<D>;
  Sum dk[of_keys ? kColumns<D> / 8 : 1] = {}, dv[of_values ? D / 8 : 1] = {};
  if (all_steps > 0) fetch(0);
  for (int i = 0; i < all_steps; i++) {
    await_step(i, all_steps, fetch);
    const int at = first + i % steps * rows, offset = i % 2 * rows * kPitch<D>;
    // Products are transposed here: their rows are keys, their columns queries.
    Sum p[rows / 8] = {}, dp[rows / 8] = {};
    multiply_transposed<D>(p, keys, queries + offset);
    if constexpr (of_keys) multiply_transposed<D>(dp, values, gradients + offset);
    if (op.cap > 0) apply_cap(p, op.scale, op.cap);
    const bool all = at >= first + kTileRows && at + rows <= least;
#pragma unroll
    for (int n = 0; n < rows / 8; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int col = n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2, query = at + col;
        const bool visible = all || (query >= row[j / 2] && query < end[j / 2]);
        p[n][j] = visible ? power_of_two(fmaf(p[n][j], scale, -lse[i % 2 * rows + col])) : 0.0f;
        dp[n][j] = p[n][j] * (dp[n][j] - delta[i % 2 * rows + col]);
        if (op.cap > 0) dp[n][j] *= cap_slope(p[n][j], lse[i % 2 * rows + col], inverse);
      }
    if constexpr (of_values) multiply_add<D>(dv, p, gradients + offset);
    if constexpr (of_keys) multiply_add<D, kColumns<D>>(dk, dp, queries + offset + part);
    __syncthreads();
  }
  wait_fetches<0>();
  if constexpr (of_keys)
    save_sums<kColumns<D>>(op.dk.at(first, column + part), op.dk.stride, tokens - first, dim - part, dk,
                           {op.scale, op.scale});
  if constexpr (of_values) save_sums<D>(op.dv.at(first, column), op.dv.stride, tokens - first, dim, dv, {1.0f, 1.0f});
}

// Returns the launch of these kernels, in steps of `rows` queries.
template <int D, int rows, bool of_keys, bool of_values>
AttentionLaunch key_gradient(const GradientRows& op, cudaStream_t stream) {
  constexpr auto* kKernel = key_gradient_kernel<D, rows, of_keys, of_values>;
  allow_shared(kKernel, kKeyBytes<D, rows>);
  const dim3 grid(blocks_of(op.tokens, kTileRows), static_cast<unsigned>(op.heads.kv_heads), of_values ? 1 : kParts<D>);
  return [=](int documents) {
    kKernel<<<grid, kTileThreads, kKeyBytes<D, rows>, stream>>>(op, documents);
    check_launch("attention_backward");
  };
}

template <int D>
AttentionLaunch key_gradients(const GradientRows& op, cudaStream_t stream) {
  if constexpr (kStationaryInRegisters<D>) {
    return [keys = key_gradient<D, kRowsPerStepOf<D>, true, false>(op, stream),
            values = key_gradient<D, kRowsPerStepOf<D>, false, true>(op, stream)](int documents) {
      keys(documents);
      values(documents);
    };
  } else {
    // Heads of 128 take 137 KiB in steps of kRowsPerStep: an A100 has them, cards for gaming (8.6, 8.9, 12.0) have 99.
    constexpr int kLeast = 99 * 1024;
    if constexpr (kKeyBytes < D, kRowsPerStep >> kLeast)
      if (resident_blocks(key_gradient_kernel<D, kRowsPerStep, true, true>, kTileThreads, kKeyBytes<D, kRowsPerStep>) ==
          0)
        return key_gradient<D, 16, true, true>(op, stream);
    return key_gradient<D, kRowsPerStep, true, true>(op, stream);
  }
}

template <int D>
AttentionLaunch query_gradients(const GradientRows& op, cudaStream_t stream) {
  allow_shared(query_gradient_kernel<D>, kQueryBytes<D>);
  const dim3 grid(blocks_of(op.tokens, kTileRows), static_cast<unsigned>(op.heads.heads), kParts<D>);
  return [=](int documents) {
    query_gradient_kernel<D><<<grid, kTileThreads, kQueryBytes<D>, stream>>>(op, documents);
    check_launch("attention_backward");
  };
}

}  // namespace

void launch_delta(const GradientRows& op, cudaStream_t stream) {
  const auto launch = [&]<int N, int lanes>() {
    const unsigned blocks = blocks_of(op.tokens * op.heads.heads, kTileThreads / lanes);
    delta_kernel<N, lanes><<<blocks, kTileThreads, 0, stream>>>(op);
  };
  const int dim = op.heads.dim;
  if (dim % 8 != 0)
    launch.template operator()<4, 32>();
  else if (dim <= 64)
    launch.template operator()<8, 8>();
  else if (dim <= 128)
    launch.template operator()<8, 16>();
  else
    launch.template operator()<8, 32>();
}

AttentionLaunch tiled_attention_gradient(const GradientRows& op, cudaStream_t stream) {
  return dispatch_dim<kTileDims>(op.heads.dim, [&]<int D>() -> AttentionLaunch {
    return [=, keys = key_gradients<D>(op, stream), queries = query_gradients<D>(op, stream)](int documents) {
      launch_delta(op, stream);
      keys(documents);
      queries(documents);
    };
  });
}

}  // namespace snug::cuda
