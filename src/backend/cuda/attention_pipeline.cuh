// How tiles reach the warpgroups of attention: a warpgroup of its own fetches them by the Tensor Memory Accelerator
// into rings in shared memory, ahead of those that multiply, and takes one block of work after the other from a
// counter, so that a block's first tiles come while the one before is written (Shah et al., arXiv:2407.08608).
#pragma once

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

// Two warpgroups that begin their products in turns, so that one computes weights while the other multiplies.
__device__ inline void await_turn() {
  SNUG_HOPPER("bar.sync %0, %1;" ::"r"(1 + static_cast<int>(threadIdx.x) / 128), "n"(kTileThreads) : "memory");
}
__device__ inline void give_turn() {
  SNUG_HOPPER("bar.arrive %0, %1;" ::"r"(2 - static_cast<int>(threadIdx.x) / 128), "n"(kTileThreads) : "memory");
}

// ---- Tiles ----------------------------------------------------------------------------------------------------------

// Panels of the heads of a matrix whose rows lie in global memory: where boxes of 64 columns of a head and so many rows
// are fetched from. Columns beyond a head's last, and rows beyond the last, are zeros.
struct Panels {
  CUtensorMap map;
};
// Of heads of `dim` elements, which 8 divides. Threading: from any thread.
Panels panels_of(const Rows<BFloat16>& matrix, int dim, int heads, int64_t rows, int box_rows);

// A head's rows from `row` on into a tile; the barrier expects the bytes.
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

// Of the rows [first, first + kOwn): the first token that any of them sees, `tokens` if all lie outside documents.
__device__ inline int first_seen(int first, int tokens, const Sight& sight) {
  return sight.first_seen_by(max(first, min(sight.starts[0], first + kOwn - 1)), tokens);
}
// From where on all of them see what comes before them; `tokens` if some lie outside documents.
__device__ inline int seen_by_all(int first, int tokens, const Sight& sight) {
  return max(sight.first_seen_by(first, tokens), sight.first_seen_by(first + kOwn - 1, tokens));
}
// Beyond the last token that sees any of them; 0 if all lie outside documents.
__device__ inline int last_seeing(int first, const Sight& sight) {
  return sight.end_of_seers(min(first + kOwn - 1, max(sight.starts[sight.documents] - 1, first)));
}
// Up to where all that come after them see all of them; 0 if some lie outside documents.
__device__ inline int all_seen_until(int first, const Sight& sight) {
  return min(sight.end_of_seers(first), sight.end_of_seers(first + kOwn - 1));
}

// ---- Work -----------------------------------------------------------------------------------------------------------

// kOwn rows of one head, by their number: the `late` rows of all heads first, or the early ones. Those are what takes
// longest in a document, so that no long tile is begun when the others are done.
struct Tile {
  __device__ Tile(int number, int64_t tokens, int heads, bool late) {
    const int row = number / heads;
    head = number % heads;
    first = (late ? count(tokens, 1) - 1 - row : row) * kOwn;
  }
  __device__ static int count(int64_t tokens, int heads) {
    return (static_cast<int>(tokens) + kOwn - 1) / kOwn * heads;
  }
  int head, first;
};

// By a warp that fetches: takes one tile after the other from `next`, tells their numbers by `taken`, and has `fetch`
// fill its own rows, for which the barrier it is given waits, and what comes after them.
template <class Fetch>
__device__ void take_tiles(int* next, Ring<1> own, int* taken, int count, const Fetch& fetch) {
  const bool leads = threadIdx.x % 32 == 0;
  for (;;) {
    own.await_empty();
    const int tile = __shfl_sync(kAll, leads ? atomicAdd(next, 1) : 0, 0);
    if (leads) *taken = tile;
    if (tile >= count) {
      if (leads) arrive(own.full());
      return;
    }
    fetch(tile, own.full());
    own.advance();
  }
}

// By those that multiply. `work` releases the tile's own rows.
template <class Work>
__device__ void work_on_tiles(Ring<1>& own, const int* taken, int count, const Work& work) {
  for (;; own.advance()) {
    own.await_full();
    const int tile = *const_cast<const volatile int*>(taken);
    if (tile >= count) return;
    work(tile);
  }
}

}  // namespace snug::cuda
