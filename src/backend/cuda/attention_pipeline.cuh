// Feeds the warpgroups of attention. A producer warpgroup fetches tiles by the Tensor Memory Accelerator into rings in
// shared memory, ahead of the consumer warpgroups, which multiply. It takes one block of work after the other from a
// counter, so that a block's first tiles come while the result of the one before is written (Shah et al.,
// arXiv:2407.08608).
#pragma once

#include <climits>

#include "backend/cuda/attention_warpgroup.cuh"
#include "backend/cuda/tensor_map.h"

namespace snug::cuda {

static_assert(kPipelineThreads == kTileThreads + 128);

// ---- Barriers in shared memory (PTX ISA, "mbarrier") ----------------------------------------------------------------

// Arrives when the data that this thread fetched by cp.async are there.
__device__ inline void arrive_after_fetches(uint32_t barrier) {
  SNUG_HOPPER("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- Warpgroups -----------------------------------------------------------------------------------------------------

// Order the consumer warpgroups (ping-pong): each waits for its place in the order before it begins products, and then
// lets the next begin, so that some compute weights while one multiplies.
__device__ inline void wait_order() {
  SNUG_HOPPER("bar.sync %0, 256;" ::"r"(1 + static_cast<int>(threadIdx.x) / 128) : "memory");
}
template <int groups>
__device__ void arrive_order() {
  SNUG_HOPPER("bar.arrive %0, 256;" ::"r"(1 + (static_cast<int>(threadIdx.x) / 128 + 1) % groups) : "memory");
}

// ---- Tiles ----------------------------------------------------------------------------------------------------------

// Returns the map of heads of `dim` elements, which 8 divides: a copy fetches `columns` columns of a head (kColumns)
// and a number of rows, as one smem tile (warpgroup.cuh). Columns beyond a head's last, and rows beyond the last, are
// zeros. It may be called from any thread.
CUtensorMap head_tensor_map(const Rows<BFloat16>& matrix, int dim, int columns, int heads, int64_t rows, int box_rows);

// Fetches a head's rows from `row` on into those of a tile of `rows` rows from its row `at` on; the barrier expects the
// bytes.
template <int D>
__device__ void fetch_rows(uint32_t tile, const CUtensorMap& from, int head, int row, int rows, uint32_t barrier,
                           int at = 0) {
#pragma unroll
  for (int i = 0; i < kSmemTiles<D>; i++)
    SNUG_HOPPER(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(tile + static_cast<uint32_t>((i * rows + at) * kSmemRowBytes<D>)),
        "l"(&from), "r"(i * kColumns<D>), "r"(row), "r"(head), "r"(barrier)
        : "memory");
}

// ---- Work -----------------------------------------------------------------------------------------------------------

// Identifies `rows` rows of one head, by their number: the `late` rows of all heads come first, or the early ones.
// Those take longest in a document, so that no long tile begins when the others are done.
template <int rows>
struct Tile {
  __device__ Tile(int number, int64_t tokens, int heads, bool late) {
    const int row = number / heads;
    head = number % heads;
    first = (late ? count(tokens, 1) - 1 - row : row) * rows;
  }
  __device__ static int count(int64_t tokens, int heads) {
    return (static_cast<int>(tokens) + rows - 1) / rows * heads;
  }
  int head, first;
};

// Describes a tile to its consumers: the producer finds it out while they are at the tile before.
struct TakenTile {
  int number;
  MaskBounds bounds;  // of a consumer's rows; only that consumer gets them
  Span seen;          // from the first to the last token that any consumer's rows see
  // Returns the number of steps of so many tokens over those.
  __device__ int steps(int count) const { return max(0, (seen.end - seen.begin + count - 1) / count); }
};

// Takes one tile after the other from `next`; called by a producer warp. `find(number, consumer)` returns the bounds of
// a consumer's rows; each consumer has a ring in `stationary` and a place in `taken`. `fetch_ahead(tile)` fetches tiles
// into rings that are free already, `fetch_stationary(tile, consumer, barrier)` a consumer's rows, for which the
// barrier waits, and `fetch_rest(tile)` the tiles that come after them.
template <int consumers, class Find, class FetchAhead, class FetchStationary, class FetchRest>
__device__ void take_tiles(int* next, Ring<1> stationary, TakenTile* taken, int count, const Find& find,
                           const FetchAhead& fetch_ahead, const FetchStationary& fetch_stationary,
                           const FetchRest& fetch_rest) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (;; stationary.advance()) {
    TakenTile tile{__shfl_sync(kAll, lane == 0 ? atomicAdd(next, 1) : 0, 0), {}, {}};
    const bool none = tile.number >= count;
    if (!none) {
      if (lane < consumers) tile.bounds = find(tile.number, lane);
      tile.seen = {__reduce_min_sync(kAll, lane < consumers ? tile.bounds.any.begin : INT_MAX),
                   __reduce_max_sync(kAll, lane < consumers ? tile.bounds.any.end : 0)};
      fetch_ahead(tile);
    }
#pragma unroll
    for (int consumer = 0; consumer < consumers; consumer++) {
      const Ring<1> ring = stationary.at(consumer);
      ring.await_empty();
      if (lane != consumer) continue;
      taken[consumer] = tile;
      if (none)
        arrive(ring.full());
      else
        fetch_stationary(tile, consumer, ring.full());
    }
    if (none) return;
    fetch_rest(tile);
  }
}

// Works on tiles; called by the warpgroups of a consumer. `work` releases the tile's stationary rows.
template <class Work>
__device__ void work_on_tiles(Ring<1>& stationary, const TakenTile& taken, int count, const Work& work) {
  for (;; stationary.advance()) {
    stationary.await_full();
    const TakenTile tile = taken;
    if (tile.number >= count) return;
    work(tile);
  }
}

}  // namespace snug::cuda
