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
  const int dim = token < op.tokens ? op.heads.value_dim : 0;
  float sum = 0;
  for (int col = lane * N; col < dim; col += lanes * N) {
    const auto dout = load_floats<N>(op.dout.at(token, op.heads.result(head) + col));
    const auto out = load_floats<N>(op.out.at(token, op.heads.result(head) + col));
#pragma unroll
    for (int k = 0; k < N; k++) sum = fmaf(dout[k], out[k], sum);
  }
  sum = warp_sum<lanes>(sum);
  if (lane == 0 && dim > 0) op.delta[head * op.tokens + token] = sum;
}

// A block has this many rows as stationary operand, 16 a warp; two blocks are on a multiprocessor, of which one
// multiplies while the other computes weights.
inline constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlockRows = 16 * kWarps;

// This is the number of columns of dQ and of dK that a block sums. For the widest heads it is a part of them, as a
// thread lacks the registers for all beside the left factors, whose products every part computes again.
template <int D>
inline constexpr int kColumns = D > 192 ? D / 2 : D;
template <int D>
inline constexpr unsigned kParts = D / kColumns<D>;

// Returns whether two blocks with this much shared memory fit on every multiprocessor: the smallest have 100 KiB, of
// which each block takes 1 KiB and what the compiler adds.
constexpr bool always_two(int bytes) { return 2 * (bytes + 1152) <= 100 * 1024; }
// Returns whether two such blocks fit on a multiprocessor of this device.
template <class Kernel>
bool two_fit(Kernel* kernel, int bytes) {
  return resident_blocks(kernel, kThreads, static_cast<size_t>(bytes)) >= int64_t{2} * multiprocessors();
}

// Holds the stationary operand's rows of a warp as left factors.
template <int D>
using LeftRows = Fragment[D / 16];
template <int D>
__device__ void load_left_rows(LeftRows<D>& fragments, const SwizzledTile<D>& tile) {
#pragma unroll
  for (int k = 0; k < D / 16; k++) tile.load_left(fragments[k], static_cast<int>(threadIdx.x) / 32 * 16, k);
}
// Returns a left factor that lies in registers, for SwizzledTile::multiply_transposed().
template <int D>
__device__ auto left_in_registers(const LeftRows<D>& fragments) {
  return [&fragments](int k, Fragment(&a)[1]) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[0][i] = fragments[k][i];
  };
}

// ---- Queries --------------------------------------------------------------------------------------------------------

// This is the shared memory of steps of `keys` keys, whose number changes no bit.
template <int D, int keys>
inline constexpr int kQueryBytes = 4 * keys* D* static_cast<int>(sizeof(BFloat16));

template <int D, int keys, Extra extra>
__global__ void __launch_bounds__(kThreads, 2)
    query_gradient_kernel(const __grid_constant__ GradientRows op, int documents) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  constexpr bool kCapped = extra == Extra::Cap;
  using Tile = SwizzledTile<D>;
  const Tile k_tiles{reinterpret_cast<BFloat16*>(shared_bytes)};  // two tiles each, one after the other
  const Tile v_tiles = k_tiles.from_row(2 * keys);
  const int head = static_cast<int>(blockIdx.y), kv_head = head / op.heads.group();
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;
  const int tokens = static_cast<int>(op.tokens), key_tokens = static_cast<int>(op.keys);
  const ValueHeads<extra> value_heads{op.heads};

  const auto fetch_stationary = [&](const Tile& tile, const Rows<BFloat16>& from, int column, int dim) {
    tile.template fetch<kBlockRows, kThreads>(from.at(first, column), from.stride, tokens - first, dim);
    commit_fetches();
  };
  constexpr bool kBoth = 2 * keys >= kBlockRows;  // there is room for both
  fetch_stationary(k_tiles, op.q, op.heads.query(head), op.heads.dim);
  if constexpr (kBoth) fetch_stationary(v_tiles, op.dout, value_heads.result(head), value_heads.dim());
  const AttentionMask mask = op.mask(documents);
  const MaskBounds bounds = shared_mask_bounds<true>(first, kBlockRows, mask);
  Span spans[2];
  thread_spans<true>(first, bounds, mask, spans);
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first + thread_row(half);
    if (row >= tokens) continue;
    lse[half] = *op.lse.at(head, row) * kLog2E;
    delta[half] = op.delta[head * op.tokens + row];
  }
  wait_fetches<0>();
  __syncthreads();
  LeftRows<D> queries, gradients;
  load_left_rows<D>(queries, k_tiles);
  if constexpr (!kBoth) {
    __syncthreads();
    fetch_stationary(k_tiles, op.dout, value_heads.result(head), value_heads.dim());
    wait_fetches<0>();
    __syncthreads();
  }
  load_left_rows<D>(gradients, kBoth ? v_tiles : k_tiles);
  __syncthreads();

  const int steps = bounds.steps(bounds.any.begin, keys);
  const int part = static_cast<int>(blockIdx.z) * kColumns<D>;
  const auto fetch = [&](int step) {
    const int at = bounds.any.begin + step * keys, slot = step % 2 * keys;
    k_tiles.from_row(slot).template fetch<keys, kThreads>(op.k.at(at, op.heads.key(kv_head)), op.k.stride,
                                                          key_tokens - at, op.heads.dim);
    v_tiles.from_row(slot).template fetch<keys, kThreads>(op.v.at(at, value_heads.value(kv_head)), op.v.stride,
                                                          key_tokens - at, value_heads.dim());
    commit_fetches();
  };
  const float scale = op.scale * kLog2E, inverse = kCapped ? capped_inverse(op.cap) : 0.0f;
  Sum dq[1][kColumns<D> / 8] = {};
  if (steps > 0) fetch(0);
  for (int step = 0; step < steps; step++) {
    await_step(step, steps, fetch);
    const int at = bounds.any.begin + step * keys, slot = step % 2 * keys;
    Sum s[1][keys / 8] = {}, dp[1][keys / 8] = {};
    k_tiles.from_row(slot).multiply_transposed(s, left_in_registers<D>(queries));
    v_tiles.from_row(slot).multiply_transposed(dp, left_in_registers<D>(gradients));
    if constexpr (kCapped) apply_cap(s[0], op.scale, op.cap);
    if (!bounds.show_all(at, keys)) apply_mask(s[0], at, spans);
#pragma unroll
    for (int n = 0; n < keys / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float p = power_of_two(fmaf(s[0][n][i], scale, -lse[i / 2]));
        s[0][n][i] = p * (dp[0][n][i] - delta[i / 2]);
        if constexpr (kCapped) s[0][n][i] *= cap_slope(p, lse[i / 2], inverse);
      }
    k_tiles.from_row(slot).template multiply_add<kColumns<D>>(dq, s, part / 8);
    __syncthreads();
  }
  save_sums<kColumns<D>>(op.dq.at(first, op.heads.query(head) + part), op.dq.stride, tokens - first,
                         op.heads.dim - part, dq[0], {op.scale, op.scale});
}

// Returns the launch in steps of `keys` keys, or of as many of those as let two blocks fit on a multiprocessor.
template <int D, int keys, Extra extra>
AttentionLaunch query_gradient(const GradientRows& op, cudaStream_t stream) {
  constexpr auto* kKernel = query_gradient_kernel<D, keys, extra>;
  constexpr int kBytes = kQueryBytes<D, keys>;
  if constexpr (keys > 16 && !always_two(kBytes))
    if (!two_fit(kKernel, kBytes)) return query_gradient<D, keys / 2, extra>(op, stream);
  allow_shared(kKernel, kBytes);
  const dim3 grid(blocks_of(op.tokens, kBlockRows), static_cast<unsigned>(op.heads.heads), kParts<D>);
  return [=](int documents) {
    kKernel<<<grid, kThreads, kBytes, stream>>>(op, documents);
    check_launch("attention_backward");
  };
}

// ---- Keys and values ------------------------------------------------------------------------------------------------

// Says whether the stationary operands, the block's tiles of keys and values, stay in registers, as those of wide heads
// do, or in shared memory.
template <int D>
inline constexpr bool kStationaryInRegisters = D > 128;
// This is the shared memory of steps of `rows` queries, whose number changes no bit.
template <int D, int rows>
inline constexpr int kKeyBytes =
    ((kStationaryInRegisters<D> ? 0 : 2 * kBlockRows) + 4 * rows) * D* static_cast<int>(sizeof(BFloat16)) +
    4 * rows* static_cast<int>(sizeof(float));

// Gives the rows of a stationary operand as left factors.
template <int D>
struct StationaryRows {
  // Fetches the block's rows. If they stay in registers, they come through the tile, which is free again afterwards; if
  // not, they are there once everything that was fetched is.
  __device__ void fetch(const Rows<BFloat16>& from, int first, int column, int64_t tokens, int dim) {
    tile.template fetch<kBlockRows, kThreads>(from.at(first, column), from.stride, tokens - first, dim);
    if constexpr (kStationaryInRegisters<D>) {
      commit_fetches();
      wait_fetches<0>();
      __syncthreads();
      load_left_rows<D>(fragments, tile);
      __syncthreads();
    }
  }
  __device__ void operator()(int k, Fragment (&a)[1]) const {
    if constexpr (kStationaryInRegisters<D>)
      left_in_registers<D>(fragments)(k, a);
    else
      tile.load_left(a[0], static_cast<int>(threadIdx.x) / 32 * 16, k);
  }
  SwizzledTile<D> tile;
  Fragment fragments[kStationaryInRegisters<D> ? D / 16 : 1];
};

// Computes dK, dV, or both: for wide heads there are registers for one of them.
template <int D, int rows, Extra extra, bool of_keys, bool of_values>
__global__ void __launch_bounds__(kThreads, 2)
    key_gradient_kernel(const __grid_constant__ GradientRows op, int documents) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  static_assert(!kStationaryInRegisters<D> || 4 * rows >= kBlockRows,
                "stationary rows come through the tiles of queries");
  constexpr bool kCapped = extra == Extra::Cap;
  using Tile = SwizzledTile<D>;
  const Tile stationary{reinterpret_cast<BFloat16*>(shared_bytes)};
  const Tile q_tiles = stationary.from_row(kStationaryInRegisters<D> ? 0 : 2 * kBlockRows);
  const Tile dout_tiles = q_tiles.from_row(2 * rows);  // two tiles each, one after the other
  auto* const lse = reinterpret_cast<float*>(dout_tiles.from_row(2 * rows).data);
  float* const delta = lse + 2 * rows;
  const int kv_head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kBlockRows;
  const int tokens = static_cast<int>(op.tokens);

  StationaryRows<D> keys{stationary}, values{stationary.from_row(kStationaryInRegisters<D> ? 0 : kBlockRows)};
  const ValueHeads<extra> value_heads{op.heads};
  keys.fetch(op.k, first, op.heads.key(kv_head), op.keys, op.heads.dim);
  if constexpr (of_keys) values.fetch(op.v, first, value_heads.value(kv_head), op.keys, value_heads.dim());
  const AttentionMask mask = op.mask(documents);
  const MaskBounds bounds = shared_mask_bounds<false>(first, kBlockRows, mask);
  Span spans[2];  // the queries that see a row
  thread_spans<false>(first, bounds, mask, spans);

  const int steps = bounds.steps(bounds.any.begin, rows), all_steps = steps * op.heads.group();
  const auto fetch = [&](int i) {
    const int head = kv_head * op.heads.group() + i / steps, at = bounds.any.begin + i % steps * rows,
              slot = i % 2 * rows;
    q_tiles.from_row(slot).template fetch<rows, kThreads>(op.q.at(at, op.heads.query(head)), op.q.stride, tokens - at,
                                                          op.heads.dim);
    dout_tiles.from_row(slot).template fetch<rows, kThreads>(op.dout.at(at, value_heads.result(head)), op.dout.stride,
                                                             tokens - at, value_heads.dim());
    commit_fetches();
    const int t = static_cast<int>(threadIdx.x);
    if (t >= rows) return;
    const bool inside = at + t < tokens;
    lse[slot + t] = inside ? *op.lse.at(head, at + t) * kLog2E : 0.0f;
    delta[slot + t] = inside ? op.delta[head * op.tokens + at + t] : 0.0f;
  };
  const float scale = op.scale * kLog2E, inverse = kCapped ? capped_inverse(op.cap) : 0.0f;
  const int part = of_values ? 0 : static_cast<int>(blockIdx.z) * kColumns<D>;
  Sum dk[1][of_keys ? kColumns<D> / 8 : 1] = {}, dv[1][of_values ? D / 8 : 1] = {};
  if (all_steps > 0) fetch(0);
  for (int i = 0; i < all_steps; i++) {
    await_step(i, all_steps, fetch);
    const int at = bounds.any.begin + i % steps * rows, slot = i % 2 * rows;
    // Products are transposed here: their rows are keys, their columns queries.
    Sum p[1][rows / 8] = {}, dp[1][rows / 8] = {};
    q_tiles.from_row(slot).multiply_transposed(p, keys);
    if constexpr (of_keys) dout_tiles.from_row(slot).multiply_transposed(dp, values);
    if constexpr (kCapped) apply_cap(p[0], op.scale, op.cap);
    if (!bounds.show_all(at, rows)) apply_mask(p[0], at, spans);
#pragma unroll
    for (int n = 0; n < rows / 8; n++) {
      const int place = slot + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
      const float2 lses = *reinterpret_cast<const float2*>(lse + place);
      const float2 deltas = *reinterpret_cast<const float2*>(delta + place);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float base = j % 2 ? lses.y : lses.x;
        p[0][n][j] = power_of_two(fmaf(p[0][n][j], scale, -base));
        dp[0][n][j] = p[0][n][j] * (dp[0][n][j] - (j % 2 ? deltas.y : deltas.x));
        if constexpr (kCapped) dp[0][n][j] *= cap_slope(p[0][n][j], base, inverse);
      }
    }
    if constexpr (of_values) dout_tiles.from_row(slot).multiply_add(dv, p);
    if constexpr (of_keys) q_tiles.from_row(slot).template multiply_add<kColumns<D>>(dk, dp, part / 8);
    __syncthreads();
  }
  wait_fetches<0>();
  if constexpr (of_keys)
    save_sums<kColumns<D>>(op.dk.at(first, op.heads.key(kv_head) + part), op.dk.stride, op.keys - first,
                           op.heads.dim - part, dk[0], {op.scale, op.scale});
  if constexpr (of_values)
    save_sums<D>(op.dv.at(first, op.heads.value(kv_head)), op.dv.stride, op.keys - first, op.heads.value_dim, dv[0],
                 {1.0f, 1.0f});
}

// Returns the launch in steps of `rows` queries, or of as many of those as let two blocks fit on a multiprocessor.
template <int D, int rows, Extra extra, bool of_keys, bool of_values>
AttentionLaunch key_gradient(const GradientRows& op, cudaStream_t stream) {
  constexpr auto* kKernel = key_gradient_kernel<D, rows, extra, of_keys, of_values>;
  constexpr int kBytes = kKeyBytes<D, rows>;
  if constexpr (rows > 16 && !always_two(kBytes))
    if (!two_fit(kKernel, kBytes)) return key_gradient<D, rows / 2, extra, of_keys, of_values>(op, stream);
  allow_shared(kKernel, kBytes);
  const dim3 grid(blocks_of(op.keys, kBlockRows), static_cast<unsigned>(op.heads.kv_heads), of_values ? 1 : kParts<D>);
  return [=](int documents) {
    kKernel<<<grid, kThreads, kBytes, stream>>>(op, documents);
    check_launch("attention_backward");
  };
}

template <int D, Extra extra>
AttentionLaunch key_gradients(const GradientRows& op, cudaStream_t stream) {
  if constexpr (!kStationaryInRegisters<D>) {
    return key_gradient<D, 64, extra, true, true>(op, stream);
  } else {
    return [keys = key_gradient<D, 32, extra, true, false>(op, stream),
            values = key_gradient<D, 32, extra, false, true>(op, stream)](int documents) {
      keys(documents);
      values(documents);
    };
  }
}

}  // namespace

void launch_delta(const GradientRows& op, cudaStream_t stream) {
  const auto launch = [&]<int N, int lanes>() {
    const unsigned blocks = blocks_of(op.tokens * op.heads.heads, kTileThreads / lanes);
    delta_kernel<N, lanes><<<blocks, kTileThreads, 0, stream>>>(op);
  };
  const int dim = op.heads.value_dim;
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
  return dispatch_tiled(op, [&]<int D, Extra extra>() -> AttentionLaunch {
    constexpr int kKeys = D > 128 ? 32 : 64;
    return [=, keys = key_gradients<D, extra>(op, stream),
            queries = query_gradient<D, kKeys, extra>(op, stream)](int documents) {
      launch_delta(op, stream);
      keys(documents);
      queries(documents);
    };
  });
}

}  // namespace snug::cuda
