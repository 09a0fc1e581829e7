// Holds the steps and the kernel that the gradients of attention_backward.cu by warpgroups share. A product of one step
// runs while the weights of the next are computed.
#pragma once

#include <vector>

#include "backend/cuda/attention_pipeline.cuh"
#include "backend/cuda/attention_softmax.cuh"
#include "backend/cuda/launches.cuh"

namespace snug::cuda {

using GradientRows = AttentionGradientRows<BFloat16>;

inline constexpr int kSumsPerStep = kRowsPerStep / 8;  // Sums side by side in a product with a step's rows

// Says which gradients a kernel computes. For wide heads a thread lacks the registers for the gradients of keys and
// values at once.
enum class Gradients { OfQueries, OfKeys, OfValues, OfKeysAndValues };

// This is the number of consumer warpgroups, which have 64 stationary rows each. Gradients of narrow heads' queries
// leave registers for a third, which makes the backward 1 % faster.
template <int D, Gradients what>
inline constexpr int kGroups = what == Gradients::OfQueries&& D <= 80 ? 3 : 2;
template <int D, Gradients what>
inline constexpr int kRows = 64 * kGroups<D, what>;

// The stationary operands are the rows whose gradients are computed: queries and dout, or keys and values. Steps go
// over tiles of the other side, which come in two rings: first keys or queries, second values or dout.
template <int D, Gradients what>
inline constexpr int kStationaryBytes = kRows<D, what>* kBytesPerRow<D>;
template <int D>
inline constexpr int kTileBytes = kRowsPerStep* kBytesPerRow<D>;
inline constexpr int kFloatBytes =
    kRowsPerStep * static_cast<int>(sizeof(float));  // of lse, or of delta, beside a tile
template <Gradients what>
inline constexpr int kStationaryTiles = what == Gradients::OfValues ? 1 : 2;
// Says whether the first ring's barriers also cover the second's tiles, which then lie beside its own.
template <int D>
inline constexpr bool kPaired = D <= 128;
// This is the number of slots for which there is room. A sum needs two slots of the tiles that are multiplied last, as
// that product goes on into the next step. The second ring is not used if the first covers both.
template <int D, Gradients what>
inline constexpr int kFirstStages = kGroups<D, what> == 3 && D > 64           ? 3
                                    : D <= 128                                ? 4
                                    : D <= 192 || what == Gradients::OfValues ? 3
                                                                              : 2;
template <int D, Gradients what>
inline constexpr int kSecondStages = kPaired<D>                    ? 1
                                     : what == Gradients::OfValues ? (D <= 192 ? 3 : 2)
                                     : D <= 192                    ? 2
                                                                   : 1;
// A slot of both rings has this many bytes, with its lse and delta, if one ring covers both.
template <int D>
inline constexpr int kPairBytes = 2 * kTileBytes<D> + kTileAlignment;
template <int D, Gradients what>
inline constexpr int kSharedBytes = kTileAlignment + kStationaryTiles<what>* kStationaryBytes<D, what> +
                                    (kPaired<D> ? kFirstStages<D, what> * kPairBytes<D>
                                                : (kFirstStages<D, what> + kSecondStages<D, what>)*(kTileBytes<D> +
                                                                                                    kFloatBytes));

struct Backward {
  GradientRows op;
  CUtensorMap q, k, v, dout, tile_q, tile_k, tile_v, tile_dout;  // by kRowsPerStep, and by a tile's rows
  int* next;                                                     // the first tile that no block has taken
  int documents;
};

// Says where the tiles lie in shared memory, for producer and consumers.
template <int D, Gradients what>
struct GradientTiles {
  static constexpr int kFirst = kFirstStages<D, what>, kSecond = kSecondStages<D, what>;
  Ring<1> stationary;
  Ring<kFirst> first;
  Ring<kSecond> second;
  uint32_t start;
  __device__ uint32_t stationary_first() const { return start; }
  __device__ uint32_t stationary_second() const { return start + kStationaryBytes<D, what>; }
  __device__ uint32_t rings() const { return start + kStationaryTiles<what> * kStationaryBytes<D, what>; }
  __device__ uint32_t pair() const { return rings() + static_cast<uint32_t>(first.slot) * kPairBytes<D>; }
  __device__ uint32_t tile(int i) const { return rings() + static_cast<uint32_t>(i) * kTileBytes<D>; }
  __device__ uint32_t floats(int i) const { return tile(kFirst + kSecond) + static_cast<uint32_t>(i) * kFloatBytes; }
  __device__ uint32_t first_at() const { return kPaired<D> ? pair() : tile(first.slot); }
  __device__ uint32_t second_at() const { return kPaired<D> ? pair() + kTileBytes<D> : tile(kFirst + second.slot); }
  __device__ uint32_t lse_at() const { return kPaired<D> ? pair() + 2 * kTileBytes<D> : floats(first.slot); }
  __device__ uint32_t delta_at() const { return kPaired<D> ? lse_at() + kFloatBytes : floats(kFirst + second.slot); }
  __device__ uint32_t second_full() const { return kPaired<D> ? first.full() : second.full(); }
  // These are called by the producer's warp, for empty slots.
  __device__ void expect_first() const { arrive_and_expect(first.full(), (kPaired<D> ? 2 : 1) * kTileBytes<D>); }
  __device__ void expect_second() const { arrive_and_expect(second.full(), kTileBytes<D>); }
  __device__ void advance() {
    first.advance();
    if constexpr (!kPaired<D>) second.advance();
  }
  // These are called by the consumer warpgroups.
  __device__ void await_second() {
    if constexpr (kPaired<D>) return;
    second.await_full();
    begin_products();
  }
  __device__ void release_second() {
    if constexpr (kPaired<D>) return;
    second.release();
    second.advance();
  }
};

// Computes the sum of ds times the first ring's tiles, for queries or keys: compute_p(step, s) replaces products by
// weights, and compute_ds(s, dp) weights by ds. The last product of a step runs while the next one's weights are
// computed.
template <int D, Gradients what, class ComputeP, class ComputeDs>
__device__ void sum_steps(GradientTiles<D, what>& tiles, int steps, Sum (&sum)[D / 8], const ComputeP& compute_p,
                          const ComputeDs& compute_ds) {
  Fragment ds[kRowsPerStep / 16];
  uint32_t tile_before = 0;
  auto before = tiles.first;
  for (int step = 0; step < steps; step++) {
    const uint32_t tile = tiles.first_at();
    Sum s[kSumsPerStep], dp[kSumsPerStep];
    tiles.first.await_full();
    begin_products();
    start_transposed<D, kRows<D, what>>(s, tiles.stationary_first(), tile);
    commit_products();
    tiles.await_second();
    start_transposed<D, kRows<D, what>>(dp, tiles.stationary_second(), tiles.second_at());
    commit_products();
    if (step > 0) start_add<D>(sum, ds, tile_before);
    commit_products();
    wait_products<2>();
    fence(s);
    compute_p(step, s);
    wait_products<1>();
    fence(dp);
    if (step + 1 == steps) tiles.stationary.release();
    compute_ds(s, dp);
    tiles.release_second();
    wait_products<0>();
    fence(sum);
    if (step > 0) before.release();
    before = tiles.first;
    tile_before = tile;
    tiles.first.advance();
    round_to_left(ds, s);
  }
  if (steps > 0) {
    start_add<D>(sum, ds, tile_before);
    commit_products();
    wait_products<0>();
    fence(sum);
    before.release();
  } else {
    tiles.stationary.release();
  }
}

// Computes that sum with fewer registers, for the widest heads: only the next step's first product runs beside the
// last.
template <int D, Gradients what, class ComputeP, class ComputeDs>
__device__ void sum_wide_steps(GradientTiles<D, what>& tiles, int steps, Sum (&sum)[D / 8], const ComputeP& compute_p,
                               const ComputeDs& compute_ds) {
  if (steps == 0) {
    tiles.stationary.release();
    return;
  }
  Sum s[kSumsPerStep], dp[kSumsPerStep];
  Fragment ds[kRowsPerStep / 16];
  const auto start_scores = [&] {
    tiles.first.await_full();
    begin_products();
    start_transposed<D, kRows<D, what>>(s, tiles.stationary_first(), tiles.first_at());
    commit_products();
  };
  start_scores();
  for (int step = 0;; step++) {
    tiles.await_second();
    start_transposed<D, kRows<D, what>>(dp, tiles.stationary_second(), tiles.second_at());
    commit_products();
    wait_products<1>();
    fence(s);
    compute_p(step, s);
    wait_products<0>();
    fence(dp);
    compute_ds(s, dp);
    tiles.release_second();
    round_to_left(ds, s);
    start_add<D>(sum, ds, tiles.first_at());
    commit_products();
    if (step + 1 == steps) break;
    const auto before = tiles.first;
    tiles.first.advance();
    start_scores();
    wait_products<1>();
    fence(sum);
    before.release();
  }
  tiles.stationary.release();
  wait_products<0>();
  fence(sum);
  tiles.first.release();
  tiles.first.advance();
}

// ---- Kernels --------------------------------------------------------------------------------------------------------

// Computes gradients tile by tile. `Side` fetches for a tile, and computes its gradients. Each kernel but the last lets
// the next begin: one of its blocks starts on every multiprocessor that has no tiles left.
template <int D, Gradients what, class Side>
__global__ void __launch_bounds__(kThreadsOf<kGroups<D, what>>, 1) gradient_kernel(const __grid_constant__ Backward b) {
  static_assert(kStationaryBytes<D, what> % kTileAlignment == 0 && kTileBytes<D> % kTileAlignment == 0);
  constexpr bool kOfQueries = what == Gradients::OfQueries;
  if constexpr (!kOfQueries) let_next_begin();
  using Shared = GradientTiles<D, what>;
  constexpr int kConsumers = kGroups<D, what>, kConsumerThreads = 128 * kConsumers;
  constexpr int kStationaryRingBytes = Ring<1>::kBytes, kFirstRingBytes = Ring<Shared::kFirst>::kBytes;
  __shared__ uint64_t barriers[(kStationaryRingBytes + kFirstRingBytes + Ring<Shared::kSecond>::kBytes) / 8];
  __shared__ TakenTile taken;
  const uint32_t at = shared_address(barriers);
  Shared tiles{{at}, {at + kStationaryRingBytes}, {at + kStationaryRingBytes + kFirstRingBytes}, tiles_start()};
  if (threadIdx.x == 0) {
    tiles.stationary.make(1, kConsumerThreads);
    tiles.first.make(kOfQueries ? 1 : 1 + 32, kConsumerThreads);
    tiles.second.make(kOfQueries ? 1 : 1 + 32, kConsumerThreads);
  }
  publish_barriers();
  const int count = kOfQueries ? Tile<kRows<D, what>>::count(b.op.tokens, b.op.heads.heads)
                               : Tile<kRows<D, what>>::count(b.op.keys, b.op.heads.kv_heads);
  if (is_producer<kConsumers>()) {
    deallocate_registers<kProducerRegistersOf<kConsumers>>();
    if (threadIdx.x >= kConsumerThreads + 32) return;
    take_tiles<1>(
        b.next, tiles.stationary, &taken, count, [&](int number, int) { return Side::bounds(b, number); },
        [](const TakenTile&) {},
        [&](const TakenTile& tile, int, uint32_t full) {
          arrive_and_expect(full, kStationaryTiles<what> * kStationaryBytes<D, what>);
          Side::fetch_stationary(b, tiles, tile.number, full);
        },
        [&](const TakenTile& tile) { Side::fetch(b, tiles, tile); });
  } else {
    allocate_registers<kConsumerRegistersOf<kConsumers>>();
    work_on_tiles(tiles.stationary, taken, count, [&](const TakenTile& tile) { Side::compute(b, tiles, tile); });
    // A kernel that waits for the last one thus waits for all.
    if constexpr (kOfQueries || what == Gradients::OfValues) await_kernel_before();
  }
}

// Launches a kernel; with `early` beside the one before it, of which it needs nothing.
using GradientLaunch = std::function<void(const Backward& b, bool early)>;

template <int D, Gradients what, class Side>
GradientLaunch gradient_launch(cudaStream_t stream) {
  constexpr auto* kKernel = gradient_kernel<D, what, Side>;
  constexpr int kBytes = kSharedBytes<D, what>;
  allow_shared(kKernel, kBytes);
  return [stream, grid = static_cast<unsigned>(multiprocessors())](const Backward& b, bool early) {
    if (early) {
      launch_early(kKernel, grid, kThreadsOf<kGroups<D, what>>, kBytes, stream, "attention_backward", b);
    } else {
      kKernel<<<grid, kThreadsOf<kGroups<D, what>>, kBytes, stream>>>(b);
      check_launch("attention_backward");
    }
  };
}

// Return launches for heads of a size, with a soft cap on scores unless it is 0, in the order in which they are to be
// made.
GradientLaunch query_gradient_launch(int dim, float cap, cudaStream_t stream);
int query_gradient_rows(int dim, float cap);  // of a tile
int smem_tile_columns(int dim, float cap);    // of a head's tiles
std::vector<GradientLaunch> key_gradient_launches(int dim, float cap, cudaStream_t stream);

}  // namespace snug::cuda
