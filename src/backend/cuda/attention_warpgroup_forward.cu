// Computes attention_forward.cu's result by warpgroups: while one computes weights another multiplies (Shah et al.,
// arXiv:2407.08608).
#include "backend/cuda/attention_pipeline.cuh"
#include "backend/cuda/attention_softmax.cuh"

namespace snug::cuda {
namespace {

constexpr int kStages = 2;
// This is the number of warpgroups that multiply: three for narrow heads, whose weights take longer than their
// products.
template <int D>
inline constexpr int kGroups = D <= 96 ? 3 : 2;
inline constexpr int kOwned = 64;  // rows of a warpgroup in a tile
template <int D>
inline constexpr int kRows = kOwned* kGroups<D>;
// A step takes this many keys: as many as registers and shared memory hold.
template <int D>
inline constexpr int kKeys = D > 192             ? 64
                             : D > 128           ? 96
                             : D > 64 && D <= 96 ? 112
                                                 : 128;
template <int D>
inline constexpr int kOwnBytes = kRows<D>* kBytesPerRow<D>;
template <int D>
inline constexpr int kTileBytes = kKeys<D>* kBytesPerRow<D>;
template <int D>
inline constexpr int kForwardBytes = kTileAlignment + kOwnBytes<D> + 2 * kStages* kTileBytes<D>;

struct Forward {
  AttentionRows<BFloat16> op;
  Panels q, k, v;
  int* next;  // the first tile that no block has taken
  int documents;
};

// Holds what both sides know of the tiles in shared memory. Each warpgroup that multiplies owns 64 of a tile's queries,
// so that one goes on to the next tile while others are still at this one.
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

// Fetches one tile after the other; used by a warp.
template <int D>
class Fetcher {
 public:
  __device__ Fetcher(const Forward& f, Tiles<D>& tiles) : f_(f), tiles_(tiles) {}
  __device__ Reach find(int number, int group) const {
    return first_seen(Tile<kRows<D>>(number, f_.op.tokens, f_.op.heads.heads, true).first + kOwned * group, kOwned,
                      tokens(), f_.op.sight(f_.documents));
  }
  __device__ void start(const TakenTile& taken) {
    const Tile<kRows<D>> tile(taken.number, f_.op.tokens, f_.op.heads.heads, true);
    head_ = tile.head;
    first_ = tile.first;
    kv_head_ = tile.head / f_.op.heads.group();
    least_ = taken.least;
    steps_ = steps_over<kKeys<D>>(tile.first, taken.least, tokens(), kRows<D>);
    if (steps_ > 0) fetch_keys(0);
  }
  __device__ void fetch_queries(int group, uint32_t full) const {
    arrive_and_expect(full, kOwnBytes<D> / kGroups<D>);
    fetch_rows<D>(tiles_.queries + static_cast<uint32_t>(group * kOwned * kRowBytes), f_.q, head_,
                  first_ + kOwned * group, kRows<D>, full);
  }
  __device__ void fetch_rest() {
    for (int step = 0; step < steps_; step++) {
      if (step > 0) fetch_keys(step);
      fetch_values(step);
    }
  }

 private:
  __device__ int tokens() const { return static_cast<int>(f_.op.tokens); }
  __device__ void fetch_keys(int step) {
    tiles_.keys.await_empty();
    fetch(f_.k, step, tiles_.keys_at(), tiles_.keys.full());
    tiles_.keys.advance();
  }
  __device__ void fetch_values(int step) {
    tiles_.values.await_empty();
    fetch(f_.v, step, tiles_.values_at(), tiles_.values.full());
    tiles_.values.advance();
  }
  __device__ void fetch(const Panels& from, int step, uint32_t to, uint32_t full) const {
    if (threadIdx.x % 32 != 0) return;
    arrive_and_expect(full, kTileBytes<D>);
    fetch_rows<D>(to, from, kv_head_, least_ + step * kKeys<D>, kKeys<D>, full);
  }

  const Forward& f_;
  Tiles<D>& tiles_;
  int head_ = 0, kv_head_ = 0, first_ = 0, least_ = 0, steps_ = 0;  // of the tile
};

// Passes over steps whose keys are visible to none of the rows; called by a warpgroup.
template <int D>
__device__ void pass_over(Tiles<D>& tiles, int steps) {
  for (int step = 0; step < steps; step++) {
    tiles.keys.await_full();
    await_turn();
    give_turn<kGroups<D>>();
    tiles.keys.release();
    tiles.keys.advance();
    tiles.values.await_full();
    tiles.values.release();
    tiles.values.advance();
  }
}

// Computes attention for a warpgroup's rows of a tile.
template <int D>
__device__ void attend(const Forward& f, Tiles<D>& tiles, const TakenTile& taken) {
  const AttentionRows<BFloat16>& op = f.op;
  const Tile<kRows<D>> tile(taken.number, op.tokens, op.heads.heads, true);
  const int first = tile.first, tokens = static_cast<int>(op.tokens), group = static_cast<int>(threadIdx.x) / 128;
  const int own_first = first + kOwned * group, least = taken.least;
  int row[2], begin[2];
  own_rows(first, tokens, op.sight(f.documents), taken.reach, row, begin);
  const int steps = steps_over<kKeys<D>>(first, least, tokens, kRows<D>);
  const int own_steps = taken.reach.any < tokens ? steps_over<kKeys<D>>(own_first, least, tokens, kOwned) : 0;
  const int own_step = own_steps > 0 ? (taken.reach.any - least) / kKeys<D> : 0;

  RowSoftmax softmax;
  Sum out[D / 8] = {}, s[kKeys<D> / 8];
  Fragment weights[kKeys<D> / 16];
  const auto start_scores = [&] {
    tiles.keys.await_full();
    await_turn();
    begin_products();
    start_turned<D, kRows<D>>(s, tiles.queries, tiles.keys_at());
    commit_products();
  };
  const auto weigh = [&](int step, float(&factor)[2]) {
    settle(s);
    tiles.keys.release();
    tiles.keys.advance();
    if (step + 1 == own_steps) tiles.own.release();
    const int at = least + step * kKeys<D>;
    if (at + kKeys < D >> own_first || at < taken.reach.all) hide_unseen(s, at, row, begin);
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
  pass_over(tiles, own_step);
  if (own_steps == 0) {
    tiles.own.release();
  } else {
    float factor[2];
    start_scores();
    give_turn<kGroups<D>>();
    wait_products<0>();
    weigh(own_step, factor);
    round_to_left(weights, s);
    for (int step = own_step + 1; step < own_steps; step++) {
      start_scores();
      start_values();
      give_turn<kGroups<D>>();
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
  pass_over(tiles, steps - own_steps);
  save_attention<D, true>(op, tile.head, first, row, softmax, out);
}

template <int D>
__global__ void __launch_bounds__(kThreadsOf<kGroups<D>>, 1)
    attention_forward_kernel(const __grid_constant__ Forward f) {
  constexpr int kOwners = kGroups<D>, kOwnRings = kOwners * Ring<1>::kBytes;
  __shared__ uint64_t barriers[(kOwnRings + 2 * Ring<kStages>::kBytes) / 8];
  __shared__ TakenTile taken[kOwners];
  const uint32_t at = shared_address(barriers);
  Tiles<D> tiles{{at}, {at + kOwnRings}, {at + kOwnRings + Ring<kStages>::kBytes}, tiles_start()};
  if (threadIdx.x == 0) {
    for (int owner = 0; owner < kOwners; owner++) tiles.own.at(owner).make(1, 128);
    tiles.keys.make(1, 128 * kOwners);
    tiles.values.make(1, 128 * kOwners);
  }
  publish_barriers();
  const int count = Tile<kRows<D>>::count(f.op.tokens, f.op.heads.heads);
  if (fetches<kOwners>()) {
    give_registers<kFetchRegistersOf<kOwners>>();
    if (threadIdx.x >= 128 * kOwners + 32) return;
    Fetcher<D> fetcher(f, tiles);
    take_tiles<kOwners>(
        f.next, tiles.own, taken, count, [&](int number, int group) { return fetcher.find(number, group); },
        [&](const TakenTile& tile) { fetcher.start(tile); },
        [&](const TakenTile&, int group, uint32_t full) { fetcher.fetch_queries(group, full); },
        [&](const TakenTile&) { fetcher.fetch_rest(); });
  } else {
    take_registers<kProductRegistersOf<kOwners>>();
    const int group = static_cast<int>(threadIdx.x) / 128;
    tiles.own = tiles.own.at(group);
    if (group == kOwners - 1) give_turn<kOwners>();
    work_on_tiles(tiles.own, taken[group], count, [&](const TakenTile& tile) { attend<D>(f, tiles, tile); });
  }
}

template <int D>
AttentionLaunch prepare(const AttentionRows<BFloat16>& op, std::byte* counter, cudaStream_t stream) {
  allow_shared(attention_forward_kernel<D>, kForwardBytes<D>);
  Forward f{op,
            panels_of(op.q, op.heads.dim, op.heads.heads, op.tokens, kOwned),
            panels_of(op.k, op.heads.dim, op.heads.kv_heads, op.tokens, kKeys<D>),
            panels_of(op.v, op.heads.dim, op.heads.kv_heads, op.tokens, kKeys<D>),
            reinterpret_cast<int*>(counter),
            0};
  const auto grid = static_cast<unsigned>(multiprocessors());
  return [=](int documents) mutable {
    f.documents = documents;
    check_cuda(cudaMemsetAsync(f.next, 0, sizeof(int), stream), "attention");
    attention_forward_kernel<D><<<grid, kThreadsOf<kGroups<D>>, kForwardBytes<D>, stream>>>(f);
    check_launch("attention");
  };
}

}  // namespace

AttentionLaunch warpgroup_attention(const AttentionRows<BFloat16>& op, std::byte* counter, cudaStream_t stream) {
  return dispatch_dim<kWarpgroupDims>(op.heads.dim, [&]<int D>() { return prepare<D>(op, counter, stream); });
}

}  // namespace snug::cuda
