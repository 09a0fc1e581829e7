// Brings tiles to the warpgroups of attention: a warpgroup of its own fetches them by the Tensor Memory Accelerator
// into rings in shared memory, ahead of those that multiply, and takes one block of work after the other from a
// counter, so that a block's first tiles come while the one before is written (Shah et al., arXiv:2407.08608).
#pragma once

#include <climits>

#include "backend/cuda/attention_warpgroup.cuh"
#include "backend/cuda/tensor_map.h"

namespace snug::cuda {

static_assert(kPipelineThreads == kTileThreads + 128);

// ---- Barriers in shared memory (PTX ISA, "mbarrier") ----------------------------------------------------------------

// Arrives when what this thread fetched by cp.async is there.
__device__ inline void arrive_after_fetches(uint32_t barrier) {
  SNUG_HOPPER("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- Warpgroups -----------------------------------------------------------------------------------------------------

// Makes warpgroups begin their products in turns, so that some compute weights while one multiplies.
__device__ inline void await_turn() {
  SNUG_HOPPER("bar.sync %0, 256;" ::"r"(1 + static_cast<int>(threadIdx.x) / 128) : "memory");
}
template <int groups>
__device__ void give_turn() {
  SNUG_HOPPER("bar.arrive %0, 256;" ::"r"(1 + (static_cast<int>(threadIdx.x) / 128 + 1) % groups) : "memory");
}

// ---- Tiles ----------------------------------------------------------------------------------------------------------

// Holds panels of the heads of a matrix whose rows lie in global memory: boxes of 64 columns of a head and a number of
// rows are fetched from it. Columns beyond a head's last, and rows beyond the last, are zeros.
struct Panels {
  CUtensorMap map;
};
// Returns the panels of heads of `dim` elements, which 8 divides. It may be called from any thread.
Panels panels_of(const Rows<BFloat16>& matrix, int dim, int heads, int64_t rows, int box_rows);

// Fetches a head's rows from `row` on into a tile; the barrier expects the bytes.
template <int D>
__device__ void fetch_rows(uint32_t tile, const Panels& from, int head, int row, int rows, uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < kPanels<D>; panel++)
    SNUG_HOPPER(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(tile + static_cast<uint32_t>(panel * rows * kRowBytes)),
        "l"(&from.map), "r"(panel * kPanel), "r"(row), "r"(head), "r"(barrier)
        : "memory");
}

// Says how far rows reach among the tokens of the other side: as far as any of them does, and as far as all do. If both
// are one number, it is every row's.
struct Reach {
  int any, all;
};
// Returns, for rows [first, first + rows) of queries, the first token to which any of them attends, and the one from
// which on all attend to what comes before them; `tokens` for rows outside documents.
__device__ inline Reach first_seen(int first, int rows, int tokens, const Sight& sight) {
  const int last = first + rows - 1;
  return {sight.first_seen_by(max(first, min(sight.starts[0], last)), tokens),
          max(sight.first_seen_by(first, tokens), sight.first_seen_by(last, tokens))};
}
// Returns, for rows of keys, the end of the tokens that attend to any of them, and the one up to which all later tokens
// attend to all of them; 0 for rows outside documents.
__device__ inline Reach last_seeing(int first, int rows, const Sight& sight) {
  const int last = first + rows - 1;
  return {sight.end_of_seers(min(last, max(sight.starts[sight.documents] - 1, first))),
          min(sight.end_of_seers(first), sight.end_of_seers(last))};
}
// Sets both of this thread's rows of the tile of queries that begins at `first`, and the first token to which each
// attends.
__device__ inline void own_rows(int first, int tokens, const Sight& sight, const Reach& reach, int (&row)[2],
                                int (&begin)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    row[half] = first + own_row(half);
    begin[half] = reach.any == reach.all ? reach.any : sight.first_seen_by(row[half], tokens);
  }
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

// Tells the warpgroups that multiply about a tile: the one that fetches finds it out while they are at the tile before.
struct TakenTile {
  int number;
  Reach reach;  // of an owner's rows; only the owner is told
  int least;    // the least token that any owner's rows reach
};

// Takes one tile after the other from `next`; called by a warp that fetches. `find(number, owner)` returns the reach of
// an owner's rows; each owner has a ring in `own` and a place in `taken`. `fetch_ahead(tile)` fetches what needs no
// owner's consent, `fetch_own(tile, owner, barrier)` an owner's rows, for which the barrier waits, and
// `fetch_rest(tile)` what comes after them.
template <int owners, class Find, class FetchAhead, class FetchOwn, class FetchRest>
__device__ void take_tiles(int* next, Ring<1> own, TakenTile* taken, int count, const Find& find,
                           const FetchAhead& fetch_ahead, const FetchOwn& fetch_own, const FetchRest& fetch_rest) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (;; own.advance()) {
    TakenTile tile{__shfl_sync(kAll, lane == 0 ? atomicAdd(next, 1) : 0, 0), {}, 0};
    const bool none = tile.number >= count;
    if (!none) {
      if (lane < owners) tile.reach = find(tile.number, lane);
      tile.least = __reduce_min_sync(kAll, lane < owners ? tile.reach.any : INT_MAX);
      fetch_ahead(tile);
    }
#pragma unroll
    for (int owner = 0; owner < owners; owner++) {
      const Ring<1> ring = own.at(owner);
      ring.await_empty();
      if (lane != owner) continue;
      taken[owner] = tile;
      if (none)
        arrive(ring.full());
      else
        fetch_own(tile, owner, ring.full());
    }
    if (none) return;
    fetch_rest(tile);
  }
}

// Works on tiles; called by the warpgroups of an owner, which multiply. `work` releases the tile's own rows.
template <class Work>
__device__ void work_on_tiles(Ring<1>& own, const TakenTile& taken, int count, const Work& work) {
  for (;; own.advance()) {
    own.await_full();
    const TakenTile tile = taken;
    if (tile.number >= count) return;
    work(tile);
  }
}

}  // namespace snug::cuda
