// attention_forward.cu by warpgroups: the products with a step's values run while the next step's weights are computed,
// and while one warpgroup computes weights the other multiplies (Shah et al., arXiv:2407.08608).
#include "backend/cuda/attention_pipeline.cuh"
#include "backend/cuda/attention_softmax.cuh"

namespace snug::cuda {
namespace {

constexpr int kStages = 2;
// Keys a step: of wide heads as many as registers and shared memory hold.
template <int D>
inline constexpr int kKeys = D > 192   ? 64
                             : D > 128 ? 96
                                       : 128;
template <int D>
inline constexpr int kOwnBytes = kOwn* kBytesPerRow<D>;
template <int D>
inline constexpr int kTileBytes = kKeys<D>* kBytesPerRow<D>;
template <int D>
inline constexpr int kForwardBytes = kTileAlignment + kOwnBytes<D> + 2 * kStages* kTileBytes<D>;

struct Forward {
  AttentionRows<BFloat16> op;
  Panels q, k, v;
  int* next;  // the first tile that nobody has taken
  int documents;
};

// What both sides know of the tiles in shared memory.
template <int D>
struct Tiles {
  Ring<1> own;
  Ring<kStages> keys, values;
  uint32_t queries;
  __device__ uint32_t keys_at() const {
    return queries + kOwnBytes<D> + static_cast<uint32_t>(keys.slot) * kTileBytes<D>;
  }
  __device__ uint32_t values_at() const {
    return queries + kOwnBytes<D> + static_cast<uint32_t>(kStages + values.slot) * kTileBytes<D>;
  }
};

template <int D>
__device__ void fetch(const Forward& f, Tiles<D>& tiles, const Tile& tile, uint32_t own_full) {
  const int tokens = static_cast<int>(f.op.tokens), kv_head = tile.head / f.op.heads.group();
  const int least = first_seen(tile.first, tokens, f.op.sight(f.documents));
  const int steps = steps_over<kKeys<D>>(tile.first, least, tokens);
  if (threadIdx.x % 32 != 0) return;
  arrive_and_expect(own_full, kOwnBytes<D>);
  fetch_rows<D>(tiles.queries, f.q, tile.head, tile.first, kOwn, own_full);
  for (int step = 0; step < steps; step++) {
    const int at = least + step * kKeys<D>;
    tiles.keys.await_empty();
    arrive_and_expect(tiles.keys.full(), kTileBytes<D>);
    fetch_rows<D>(tiles.keys_at(), f.k, kv_head, at, kKeys<D>, tiles.keys.full());
    tiles.keys.advance();
    tiles.values.await_empty();
    arrive_and_expect(tiles.values.full(), kTileBytes<D>);
    fetch_rows<D>(tiles.values_at(), f.v, kv_head, at, kKeys<D>, tiles.values.full());
    tiles.values.advance();
  }
}

template <int D>
__device__ void attend(const Forward& f, Tiles<D>& tiles, const Tile& tile) {
  const AttentionRows<BFloat16>& op = f.op;
  const int first = tile.first, tokens = static_cast<int>(op.tokens);
  int row[2], begin[2];
  const Sight sight = op.sight(f.documents);
  own_rows(first, tokens, sight, row, begin);
  const int least = first_seen(first, tokens, sight);
  const int steps = steps_over<kKeys<D>>(first, least, tokens);
  const int largest = seen_by_all(first, tokens, sight);

  RowSoftmax softmax;
  Sum out[D / 8] = {}, s[kKeys<D> / 8];
  Fragment weights[kKeys<D> / 16];
  const auto start_scores = [&] {
    tiles.keys.await_full();
    await_turn();
    begin_products();
    start_turned<D>(s, tiles.queries, tiles.keys_at());
    commit_products();
  };
  const auto weigh = [&](int step, float(&factor)[2]) {
    settle(s);
    tiles.keys.release();
    tiles.keys.advance();
    if (step + 1 == steps) tiles.own.release();
    const int at = least + step * kKeys<D>;
    if (at + kKeys < D >> first || at < largest) hide_unseen(s, at, row, begin);
    softmax.add(s, op.scale * kLog2E, factor);
  };
  const auto start_values = [&] {
    tiles.values.await_full();
    start_add<D>(out, weights, tiles.values_at());
    commit_products();
  };
  const auto finish_values = [&] {
    wait_products<0>();
    settle(out);
    tiles.values.release();
    tiles.values.advance();
  };
  if (steps == 0) {
    tiles.own.release();
  } else {
    float factor[2];
    start_scores();
    give_turn();
    wait_products<0>();
    weigh(0, factor);
    round_to_left(weights, s);
    for (int step = 1; step < steps; step++) {
      start_scores();
      start_values();
      give_turn();
      wait_products<1>();
      weigh(step, factor);
      finish_values();
#pragma unroll
      for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) out[n][i] *= factor[i / 2];
      round_to_left(weights, s);
    }
    start_values();
    finish_values();
  }

  save_attention<D, true>(op, tile.head, first, row, softmax, out);
}

template <int D>
__global__ void __launch_bounds__(kPipelineThreads, 1) attention_forward_kernel(const __grid_constant__ Forward f) {
  __shared__ uint64_t barriers[(Ring<1>::kBytes + 2 * Ring<kStages>::kBytes) / 8];
  __shared__ int taken;
  const uint32_t at = shared_address(barriers);
  Tiles<D> tiles{{at}, {at + Ring<1>::kBytes}, {at + Ring<1>::kBytes + Ring<kStages>::kBytes}, tiles_start()};
  if (threadIdx.x == 0) {
    tiles.own.make(1, kTileThreads);
    tiles.keys.make(1, kTileThreads);
    tiles.values.make(1, kTileThreads);
  }
  publish_barriers();
  const int count = Tile::count(f.op.tokens, f.op.heads.heads);
  // Late tiles see most keys.
  if (fetches()) {
    give_registers<kFetchRegisters>();
    if (threadIdx.x >= kTileThreads + 32) return;
    take_tiles(f.next, tiles.own, &taken, count, [&](int number, uint32_t full) {
      fetch<D>(f, tiles, Tile(number, f.op.tokens, f.op.heads.heads, true), full);
    });
  } else {
    take_registers<kProductRegisters>();
    if (threadIdx.x >= 128) give_turn();
    work_on_tiles(tiles.own, &taken, count,
                  [&](int number) { attend<D>(f, tiles, Tile(number, f.op.tokens, f.op.heads.heads, true)); });
  }
}

template <int D>
AttentionLaunch prepare(const AttentionRows<BFloat16>& op, std::byte* counter, cudaStream_t stream) {
  allow_shared(attention_forward_kernel<D>, kForwardBytes<D>);
  Forward f{op,
            panels_of(op.q, op.heads.dim, op.heads.heads, op.tokens, kOwn),
            panels_of(op.k, op.heads.dim, op.heads.kv_heads, op.tokens, kKeys<D>),
            panels_of(op.v, op.heads.dim, op.heads.kv_heads, op.tokens, kKeys<D>),
            reinterpret_cast<int*>(counter),
            0};
  const auto grid = static_cast<unsigned>(multiprocessors());
  return [=](int documents) mutable {
    f.documents = documents;
    check_cuda(cudaMemsetAsync(f.next, 0, sizeof(int), stream), "attention");
    attention_forward_kernel<D><<<grid, kPipelineThreads, kForwardBytes<D>, stream>>>(f);
    check_launch("attention");
  };
}

}  // namespace

AttentionLaunch warpgroup_attention(const AttentionRows<BFloat16>& op, std::byte* counter, cudaStream_t stream) {
  return dispatch_dim<kWarpgroupDims>(op.heads.dim, [&]<int D>() { return prepare<D>(op, counter, stream); });
}

}  // namespace snug::cuda
