// Holds what the kernels of attention_backward.cu's gradients by warpgroups share. A product of one step runs while the
// weights of the next are computed.
#pragma once

#include <vector>

#include "backend/cuda/attention_pipeline.cuh"
#include "backend/cuda/attention_softmax.cuh"
#include "backend/cuda/launches.cuh"

namespace snug::cuda {

using GradientRows = AttentionGradientRows<BFloat16>;

inline constexpr int kSteps = kStep / 8;  // columns of 8 in a product with a step's rows

// Says what a kernel computes. For wide heads a thread lacks the registers for the gradients of keys and values at
// once.
enum class Gradients { OfQueries, OfKeys, OfValues, OfKeysAndValues };

// Own rows are those whose gradients are computed: queries and dout, or keys and values. Steps go over tiles of the
// other side, which come in two rings: first keys or queries, second values or dout.
template <int D>
inline constexpr int kOwnBytes = kOwn* kBytesPerRow<D>;
template <int D>
inline constexpr int kTileBytes = kStep* kBytesPerRow<D>;
inline constexpr int kFloatBytes = kStep * static_cast<int>(sizeof(float));  // of lse, or of delta, beside a tile
template <Gradients what>
inline constexpr int kOwnTiles = what == Gradients::OfValues ? 1 : 2;
// Says whether the first ring's barriers also cover the second's tiles, which then lie beside its own.
template <int D>
inline constexpr bool kPaired = D <= 128;
// This is the number of slots for which there is room. A sum needs two slots of what is multiplied last, as it goes on
// into the next step. The second ring is not used if the first covers both.
template <int D, Gradients what>
inline constexpr int kFirstStages = D <= 128                                  ? 4
                                    : D <= 192 || what == Gradients::OfValues ? 3
                                                                              : 2;
template <int D, Gradients what>
inline constexpr int kSecondStages = kPaired<D>                    ? 1
                                     : what == Gradients::OfValues ? (D <= 192 ? 3 : 2)
                                     : D <= 192                    ? 2
                                                                   : 1;
// A slot of both rings has this many bytes, with its numbers, if one ring covers both.
template <int D>
inline constexpr int kPairBytes = 2 * kTileBytes<D> + kTileAlignment;
template <int D, Gradients what>
inline constexpr int kSharedBytes = kTileAlignment + kOwnTiles<what>* kOwnBytes<D> +
                                    (kPaired<D> ? kFirstStages<D, what> * kPairBytes<D>
                                                : (kFirstStages<D, what> + kSecondStages<D, what>)*(kTileBytes<D> +
                                                                                                    kFloatBytes));

struct Backward {
  GradientRows op;
  Panels q, k, v, dout, own_q, own_k, own_v, own_dout;  // in boxes of kStep and of kOwn rows
  int* next;                                            // the first tile that no block has taken
  int documents;
};

// Holds what both sides know of the tiles in shared memory.
template <int D, Gradients what>
struct GradientTiles {
  static constexpr int kFirst = kFirstStages<D, what>, kSecond = kSecondStages<D, what>;
  Ring<1> own;
  Ring<kFirst> first;
  Ring<kSecond> second;
  uint32_t start;
  __device__ uint32_t own_first() const { return start; }
  __device__ uint32_t own_second() const { return start + kOwnBytes<D>; }
  __device__ uint32_t rings() const { return start + kOwnTiles<what> * kOwnBytes<D>; }
  __device__ uint32_t pair() const { return rings() + static_cast<uint32_t>(first.slot) * kPairBytes<D>; }
  __device__ uint32_t tile(int i) const { return rings() + static_cast<uint32_t>(i) * kTileBytes<D>; }
  __device__ uint32_t floats(int i) const { return tile(kFirst + kSecond) + static_cast<uint32_t>(i) * kFloatBytes; }
  __device__ uint32_t first_at() const { return kPaired<D> ? pair() : tile(first.slot); }
  __device__ uint32_t second_at() const { return kPaired<D> ? pair() + kTileBytes<D> : tile(kFirst + second.slot); }
  __device__ uint32_t lse_at() const { return kPaired<D> ? pair() + 2 * kTileBytes<D> : floats(first.slot); }
  __device__ uint32_t delta_at() const { return kPaired<D> ? lse_at() + kFloatBytes : floats(kFirst + second.slot); }
  __device__ uint32_t second_full() const { return kPaired<D> ? first.full() : second.full(); }
  // These are called by the warps that fetch, for empty slots.
  __device__ void expect_first() const { arrive_and_expect(first.full(), (kPaired<D> ? 2 : 1) * kTileBytes<D>); }
  __device__ void expect_second() const { arrive_and_expect(second.full(), kTileBytes<D>); }
  __device__ void advance() {
    first.advance();
    if constexpr (!kPaired<D>) second.advance();
  }
  // These are called by the warpgroups that multiply.
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

// Computes the sum of ds times the first ring's tiles, for queries or keys: weigh(step, s) makes weights of products,
// and differ(s, dp) makes ds of those. The last product of a step runs while the next one's weights are computed.
template <int D, Gradients what, class Weigh, class Differ>
__device__ void sum_steps(GradientTiles<D, what>& tiles, int steps, Sum (&sum)[D / 8], const Weigh& weigh,
                          const Differ& differ) {
  Fragment ds[kStep / 16];
  uint32_t tile_before = 0;
  auto before = tiles.first;
  for (int step = 0; step < steps; step++) {
    const uint32_t tile = tiles.first_at();
    Sum s[kSteps], dp[kSteps];
    tiles.first.await_full();
    begin_products();
    start_turned<D>(s, tiles.own_first(), tile);
    commit_products();
    tiles.await_second();
    start_turned<D>(dp, tiles.own_second(), tiles.second_at());
    commit_products();
    if (step > 0) start_add<D>(sum, ds, tile_before);
    commit_products();
    wait_products<2>();
    settle(s);
    weigh(step, s);
    wait_products<1>();
    settle(dp);
    if (step + 1 == steps) tiles.own.release();
    differ(s, dp);
    tiles.release_second();
    wait_products<0>();
    settle(sum);
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
    settle(sum);
    before.release();
  } else {
    tiles.own.release();
  }
}

// Computes that sum with fewer registers, for the widest heads: only the next step's first product runs beside the
// last.
template <int D, Gradients what, class Weigh, class Differ>
__device__ void sum_wide_steps(GradientTiles<D, what>& tiles, int steps, Sum (&sum)[D / 8], const Weigh& weigh,
                               const Differ& differ) {
  if (steps == 0) {
    tiles.own.release();
    return;
  }
  Sum s[kSteps], dp[kSteps];
  Fragment ds[kStep / 16];
  const auto start_scores = [&] {
    tiles.first.await_full();
    begin_products();
    start_turned<D>(s, tiles.own_first(), tiles.first_at());
    commit_products();
  };
  start_scores();
  for (int step = 0;; step++) {
    tiles.await_second();
    start_turned<D>(dp, tiles.own_second(), tiles.second_at());
    commit_products();
    wait_products<1>();
    settle(s);
    weigh(step, s);
    wait_products<0>();
    settle(dp);
    differ(s, dp);
    tiles.release_second();
    round_to_left(ds, s);
    start_add<D>(sum, ds, tiles.first_at());
    commit_products();
    if (step + 1 == steps) break;
    const auto before = tiles.first;
    tiles.first.advance();
    start_scores();
    wait_products<1>();
    settle(sum);
    before.release();
  }
  tiles.own.release();
  wait_products<0>();
  settle(sum);
  tiles.first.release();
  tiles.first.advance();
}

// ---- Kernels --------------------------------------------------------------------------------------------------------

// Runs a kernel. `Side` fetches for a tile, and computes its gradients. Each kernel but the last lets the next begin:
// one of its blocks starts on every multiprocessor that has no tiles left.
template <int D, Gradients what, class Side>
__global__ void __launch_bounds__(kPipelineThreads, 1) gradient_kernel(const __grid_constant__ Backward b) {
  constexpr bool kOfQueries = what == Gradients::OfQueries;
  if constexpr (!kOfQueries) let_next_begin();
  using Shared = GradientTiles<D, what>;
  constexpr int kOwnRing = Ring<1>::kBytes, kFirstRing = Ring<Shared::kFirst>::kBytes;
  __shared__ uint64_t barriers[(kOwnRing + kFirstRing + Ring<Shared::kSecond>::kBytes) / 8];
  __shared__ TakenTile taken;
  const uint32_t at = shared_address(barriers);
  Shared tiles{{at}, {at + kOwnRing}, {at + kOwnRing + kFirstRing}, tiles_start()};
  if (threadIdx.x == 0) {
    tiles.own.make(1, kTileThreads);
    tiles.first.make(kOfQueries ? 1 : 1 + 32, kTileThreads);
    tiles.second.make(kOfQueries ? 1 : 1 + 32, kTileThreads);
  }
  publish_barriers();
  const int count = Tile<kOwn>::count(b.op.tokens, kOfQueries ? b.op.heads.heads : b.op.heads.kv_heads);
  if (fetches()) {
    give_registers<kFetchRegisters>();
    if (threadIdx.x >= kTileThreads + 32) return;
    take_tiles<1>(
        b.next, tiles.own, &taken, count, [&](int number, int) { return Side::reach(b, number); },
        [](const TakenTile&) {},
        [&](const TakenTile& tile, int, uint32_t full) {
          arrive_and_expect(full, kOwnTiles<what> * kOwnBytes<D>);
          Side::fetch_own(b, tiles, tile.number, full);
        },
        [&](const TakenTile& tile) { Side::fetch(b, tiles, tile); });
  } else {
    take_registers<kProductRegisters>();
    work_on_tiles(tiles.own, taken, count, [&](const TakenTile& tile) { Side::compute(b, tiles, tile); });
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
      launch_early(kKernel, grid, kPipelineThreads, kBytes, stream, "attention_backward", b);
    } else {
      kKernel<<<grid, kPipelineThreads, kBytes, stream>>>(b);
      check_launch("attention_backward");
    }
  };
}

// Return launches for heads of a size, in the order in which they are to be made.
GradientLaunch query_gradient_launch(int dim, cudaStream_t stream);
std::vector<GradientLaunch> key_gradient_launches(int dim, cudaStream_t stream);

}  // namespace snug::cuda
