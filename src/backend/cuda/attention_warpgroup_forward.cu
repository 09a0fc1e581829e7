// Computes attention_forward.cu's result by warpgroups: while one computes weights another multiplies (Shah et al.,
// arXiv:2407.08608).
#include "backend/cuda/attention_pipeline.cuh"
#include "backend/cuda/attention_softmax.cuh"
#include "backend/cuda/launches.cuh"

namespace snug::cuda {
namespace {

// This is the number of slots of a ring. The third makes narrow heads 1 to 4 % faster; of 128, there is room for one
// too, which makes long documents 2 % slower.
template <int D>
inline constexpr int kStages = D <= 96 ? 3 : 2;
// This is the number of consumer warpgroups: three for narrow heads, whose weights take longer than their products.
template <int D>
inline constexpr int kGroups = D <= 96 ? 3 : 2;
inline constexpr int kGroupRows = 64;  // rows of a warpgroup in a tile
template <int D>
inline constexpr int kRows = kGroupRows* kGroups<D>;
// A step takes this many keys: as many as registers and shared memory hold.
template <int D>
inline constexpr int kKeysPerStep = D > 192             ? 64
                                    : D > 128           ? 96
                                    : D > 64 && D <= 96 ? 96
                                                        : 128;
template <int D>
inline constexpr int kStationaryBytes = kRows<D>* kBytesPerRow<D>;
template <int D>
inline constexpr int kTileBytes = kKeysPerStep<D>* kBytesPerRow<D>;
template <int D>
inline constexpr int kForwardBytes = kTileAlignment + kStationaryBytes<D> + 2 * kStages<D>* kTileBytes<D>;

struct Forward {
  AttentionRows<BFloat16> op;
  CUtensorMap q, k, v;
  int* next;      // the first tile that no block has taken
  int* overflow;  // not 0: weights of some tile were more than a number can hold, as their base was not raised in time
  bool exact;     // only if that is so, and then all anew, with a new base in every step
  int documents;
};

// Says where the tiles lie in shared memory, for producer and consumers. Each consumer warpgroup has 64 of a tile's
// queries to itself, so that one goes on to the next tile while others are still at this one.
template <int D>
struct Tiles {
  Ring<1> stationary;
  Ring<kStages<D>> keys, values;
  uint32_t queries;
  __device__ uint32_t keys_at() const {
    return queries + kStationaryBytes<D> + static_cast<uint32_t>(keys.slot) * kTileBytes<D>;
  }
  __device__ uint32_t values_at() const {
    return queries + kStationaryBytes<D> + static_cast<uint32_t>(kStages<D> + values.slot) * kTileBytes<D>;
  }
};

// Fetches one tile after the other; used by the producer's warp.
template <int D>
class Fetcher {
 public:
  __device__ Fetcher(const Forward& f, Tiles<D>& tiles) : f_(f), tiles_(tiles) {}
  __device__ MaskBounds find(int number, int group) const {
    return mask_bounds<true>(Tile<kRows<D>>(number, f_.op.tokens, f_.op.heads.heads, true).first + kGroupRows * group,
                             kGroupRows, f_.op.mask(f_.documents));
  }
  __device__ void start(const TakenTile& taken) {
    const Tile<kRows<D>> tile(taken.number, f_.op.tokens, f_.op.heads.heads, true);
    head_ = tile.head;
    first_ = tile.first;
    kv_head_ = tile.head / f_.op.heads.group();
    begin_ = taken.seen.begin;
    steps_ = taken.steps(kKeysPerStep<D>);
    if (steps_ > 0) fetch_keys(0);
  }
  __device__ void fetch_queries(int group, uint32_t full) const {
    arrive_and_expect(full, kStationaryBytes<D> / kGroups<D>);
    fetch_rows<D>(tiles_.queries, f_.q, head_, first_ + kGroupRows * group, kRows<D>, full, kGroupRows * group);
  }
  __device__ void fetch_rest() {
    for (int step = 0; step < steps_; step++) {
      if (step > 0) fetch_keys(step);
      fetch_values(step);
    }
  }

 private:
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
  __device__ void fetch(const CUtensorMap& from, int step, uint32_t to, uint32_t full) const {
    if (threadIdx.x % 32 != 0) return;
    arrive_and_expect(full, kTileBytes<D>);
    fetch_rows<D>(to, from, kv_head_, begin_ + step * kKeysPerStep<D>, kKeysPerStep<D>, full);
  }

  const Forward& f_;
  Tiles<D>& tiles_;
  int head_ = 0, kv_head_ = 0, first_ = 0, begin_ = 0, steps_ = 0;  // of the tile
};

// Skips steps whose keys none of the rows attends to; called by a consumer warpgroup.
template <int D>
__device__ void skip_steps(Tiles<D>& tiles, int steps) {
  for (int step = 0; step < steps; step++) {
    tiles.keys.await_full();
    wait_order();
    arrive_order<kGroups<D>>();
    tiles.keys.release();
    tiles.keys.advance();
    tiles.values.await_full();
    tiles.values.release();
    tiles.values.advance();
  }
}

// Computes attention for a warpgroup's rows of a tile.
template <int D, bool capped>
__device__ void attend(const Forward& f, Tiles<D>& tiles, const TakenTile& taken) {
  const AttentionRows<BFloat16>& op = f.op;
  const Tile<kRows<D>> tile(taken.number, op.tokens, op.heads.heads, true);
  const int first = tile.first, begin = taken.seen.begin;
  Span spans[2];
  thread_spans<true>(first, taken.bounds, op.mask(f.documents), spans);
  const int steps = taken.steps(kKeysPerStep<D>);
  const int group_steps = taken.bounds.steps(begin, kKeysPerStep<D>);
  const int first_step = group_steps > 0 ? (taken.bounds.any.begin - begin) / kKeysPerStep<D> : 0;

  RowSoftmax softmax;
  bool softmax_begun = false;
  Sum out[D / 8] = {}, s[kKeysPerStep<D> / 8];
  Fragment weights[kKeysPerStep<D> / 16];
  const auto start_scores = [&] {
    tiles.keys.await_full();
    wait_order();
    begin_products();
    start_transposed<D, kRows<D>>(s, tiles.queries, tiles.keys_at());
    commit_products();
  };
  const auto compute_p = [&](int step, float(&factor)[2]) {
    fence(s);
    tiles.keys.release();
    tiles.keys.advance();
    if (step + 1 == group_steps) tiles.stationary.release();
    const int at = begin + step * kKeysPerStep<D>;
    if constexpr (capped) apply_cap(s, op.scale, op.cap);
    if (!taken.bounds.show_all(at, kKeysPerStep<D>)) apply_mask(s, at, spans);
    if (softmax_begun && !f.exact) return softmax.add_to_base(s, op.scale * kLog2E, factor);
    softmax.add(s, op.scale * kLog2E, factor);
    softmax_begun = softmax.begun();
    return true;
  };
  const auto start_values = [&] {
    tiles.values.await_full();
    start_add<D>(out, weights, tiles.values_at());
    commit_products();
  };
  const auto finish_values = [&] {
    wait_products<0>();
    fence(out);
    tiles.values.release();
    tiles.values.advance();
  };
  skip_steps(tiles, first_step);
  if (group_steps == 0) {
    tiles.stationary.release();
  } else {
    float factor[2];
    start_scores();
    arrive_order<kGroups<D>>();
    wait_products<0>();
    compute_p(first_step, factor);
    round_to_left(weights, s);
    for (int step = first_step + 1; step < group_steps; step++) {
      start_scores();
      start_values();
      arrive_order<kGroups<D>>();
      wait_products<1>();
      const bool scaled = compute_p(step, factor);
      finish_values();
      if (scaled) scale_rows(out, factor);
      round_to_left(weights, s);
    }
    start_values();
    finish_values();
  }
  skip_steps(tiles, steps - group_steps);
  save_attention<D, true>(op, tile.head, first, first + thread_row(0), softmax, out);
  if (softmax.overflown()) *f.overflow = 1;
}

template <int D, bool capped>
__global__ void __launch_bounds__(kThreadsOf<kGroups<D>>, 1)
    attention_forward_kernel(const __grid_constant__ Forward f) {
  static_assert(kStationaryBytes<D> % kTileAlignment == 0 && kTileBytes<D> % kTileAlignment == 0);
  if (!f.exact) {
    let_next_begin();
  } else {
    await_kernel_before();
    if (*f.overflow == 0) return;
  }
  constexpr int kConsumers = kGroups<D>, kStationaryRingBytes = kConsumers * Ring<1>::kBytes;
  __shared__ uint64_t barriers[(kStationaryRingBytes + 2 * Ring<kStages<D>>::kBytes) / 8];
  __shared__ TakenTile taken[kConsumers];
  const uint32_t at = shared_address(barriers);
  Tiles<D> tiles{
      {at}, {at + kStationaryRingBytes}, {at + kStationaryRingBytes + Ring<kStages<D>>::kBytes}, tiles_start()};
  if (threadIdx.x == 0) {
    for (int consumer = 0; consumer < kConsumers; consumer++) tiles.stationary.at(consumer).make(1, 128);
    tiles.keys.make(1, 128 * kConsumers);
    tiles.values.make(1, 128 * kConsumers);
  }
  publish_barriers();
  const int count = Tile<kRows<D>>::count(f.op.tokens, f.op.heads.heads);
  if (is_producer<kConsumers>()) {
    deallocate_registers<kProducerRegistersOf<kConsumers>>();
    if (threadIdx.x >= 128 * kConsumers + 32) return;
    Fetcher<D> fetcher(f, tiles);
    take_tiles<kConsumers>(
        f.next, tiles.stationary, taken, count, [&](int number, int group) { return fetcher.find(number, group); },
        [&](const TakenTile& tile) { fetcher.start(tile); },
        [&](const TakenTile&, int group, uint32_t full) { fetcher.fetch_queries(group, full); },
        [&](const TakenTile&) { fetcher.fetch_rest(); });
  } else {
    allocate_registers<kConsumerRegistersOf<kConsumers>>();
    const int group = static_cast<int>(threadIdx.x) / 128;
    tiles.stationary = tiles.stationary.at(group);
    if (group == kConsumers - 1) arrive_order<kConsumers>();
    work_on_tiles(tiles.stationary, taken[group], count,
                  [&](const TakenTile& tile) { attend<D, capped>(f, tiles, tile); });
  }
}

template <int D, bool capped>
AttentionLaunch prepare(const AttentionRows<BFloat16>& op, std::byte* counter, cudaStream_t stream) {
  allow_shared(attention_forward_kernel<D, capped>, kForwardBytes<D>);
  Forward f{op,
            head_tensor_map(op.q, op.heads.dim, kColumns<D>, op.heads.heads, op.tokens, kGroupRows),
            head_tensor_map(op.k, op.heads.dim, kColumns<D>, op.heads.kv_heads, op.keys, kKeysPerStep<D>),
            head_tensor_map(op.v, op.heads.value_dim, kColumns<D>, op.heads.kv_heads, op.keys, kKeysPerStep<D>),
            reinterpret_cast<int*>(counter),
            reinterpret_cast<int*>(counter) + 1,
            false,
            0};
  Forward exact = f;
  exact.next = f.next + 2;
  exact.exact = true;
  const auto grid = static_cast<unsigned>(multiprocessors());
  return [=](int documents) mutable {
    check_cuda(cudaMemsetAsync(f.next, 0, 3 * sizeof(int), stream), "attention");
    f.documents = exact.documents = documents;
    constexpr int kThreads = kThreadsOf<kGroups<D>>;
    attention_forward_kernel<D, capped><<<grid, kThreads, kForwardBytes<D>, stream>>>(f);
    check_launch("attention");
    launch_early(attention_forward_kernel<D, capped>, dim3(grid), kThreads, kForwardBytes<D>, stream, "attention",
                 exact);
  };
}

}  // namespace

AttentionLaunch warpgroup_attention(const AttentionRows<BFloat16>& op, std::byte* counter, cudaStream_t stream) {
  return dispatch_tile<kWarpgroupDims>(op.heads.widest(), op.cap,
                                       [&]<int D, bool capped>() { return prepare<D, capped>(op, counter, stream); });
}

}  // namespace snug::cuda
