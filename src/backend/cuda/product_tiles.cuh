// Computes products of large matrices in bf16, with an epilogue of each kernel's own (Epilogue, below), which runs on
// one tile of the result while the next tile's products are under way.
//
// Every multiprocessor has one block, which takes one tile of the result after the other. A producer warpgroup fetches
// stages of both factors by the Tensor Memory Accelerator; two consumers multiply, each half of the tile's rows, with
// all sums in registers. An adapter's product is some more stages of these sums: apart, it would read and write the
// whole result once more. A finished tile is only rounded before the next one's products begin; it is written while
// these run.
//
// Two blocks are a cluster: their tiles are one above the other, and each fetches half of the right factor for both.
#pragma once

#include <algorithm>

#include "backend/cuda/facts.h"
#include "backend/cuda/launches.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/warpgroup.cuh"
#include "program/adapter.h"

namespace snug::cuda {

inline constexpr int kTileM = kProductTileRows, kTileN = kProductTileColumns, kDepth = 64, kStages = 4,
                     kProductWarps = 8, kBlocks = 2;
inline constexpr int kTileHalf = kTileN / 2;
inline constexpr int kSumColumns = kTileN / 8;
inline constexpr int kLeftBytes = kTileM * kRowBytes, kRightBytes = kTileN * kRowBytes;
inline constexpr int kStageBytes = kLeftBytes + kRightBytes;
inline constexpr int kSmemTileBytes = kDepth * kRowBytes;  // of 64 columns of a factor whose rows are summed over
inline constexpr int kSlicesPerStage = kDepth / 16;
inline constexpr int kGroup = 8;  // tiles of clusters that are worked on together along m
// A warp writes its 16 rows through smem tiles of 64 columns, of which it has two.
inline constexpr int kEpilogueTileBytes = 16 * kRowBytes, kEpilogueTiles = 2;
inline constexpr int kSharedBytes =
    kTileAlignment + kStages * kStageBytes + kProductWarps * kEpilogueTiles * kEpilogueTileBytes;
static_assert(kDepth == kSmemTileColumns);

// Orders tiles in the result. Clusters' tiles go down kGroup of them before the next column, so that the part of the
// result on which all multiprocessors work at a time is nearly square.
struct TileOrder {
  int rows, columns;
  __device__ int count() const { return rows * columns; }
  __device__ int2 place(int number) const {
    const int whole = kGroup * columns, first = number / whole * kGroup, in_group = number % whole;
    const int height = min(kGroup, rows - first);
    return {first + in_group % height, in_group / height};
  }
};

struct Factors {
  CUtensorMap a, b, u, v;
  TileOrder order;
  int m, steps;
  // Says how many columns lie from one tile to the next, and from a tile's first half to its second.
  int tile_columns = kTileN, second_half = kTileHalf;
  int rank;                             // of the adapter
  int low_rank_steps, low_rank_slices;  // stages of the adapter's product, and slices of 16 in all of them
  int ends[2];                          // ends of all parts of the columns but the last
  __device__ int part(int column) const { return (column >= ends[0]) + (column >= ends[1]); }
  // Return the place of this block's tile.
  __device__ int row(int2 place) const;
  __device__ int column(int2 place) const { return place.y * tile_columns; }
};

// ---- Clusters -------------------------------------------------------------------------------------------------------

__device__ inline int block_in_cluster() { return static_cast<int>(blockIdx.x) % kBlocks; }
__device__ inline int first_tile() { return static_cast<int>(blockIdx.x) / kBlocks; }
__device__ inline int clusters() { return static_cast<int>(gridDim.x) / kBlocks; }

__device__ inline int Factors::row(int2 place) const { return (place.x * kBlocks + block_in_cluster()) * kTileM; }

// Waits for all threads of the cluster that have not returned; their earlier writes are seen afterwards.
__device__ inline void meet_cluster() {
  SNUG_HOPPER("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}

// Arrives at the barrier that lies in block `rank` where `barrier` lies in this one. It says only that products have
// read their factors: no memory has to be made visible to the other block, as a fence for that would cost more than the
// arrival.
__device__ inline void arrive_at(uint32_t barrier, int rank) {
  SNUG_HOPPER(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// ---- Tiles in shared memory -----------------------------------------------------------------------------------------

// Fetches an smem tile at (x, y), to this place and barrier in all blocks of the cluster or only in this one.
template <bool to_all>
__device__ void fetch_smem_tile(uint32_t to, const CUtensorMap& map, int x, int y, uint32_t barrier) {
  if constexpr (to_all)
    SNUG_HOPPER(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<uint16_t>((1 << kBlocks) - 1))
        : "memory");
  else
    SNUG_HOPPER(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}
__device__ inline void fetch_smem_tile(uint32_t to, const CUtensorMap& map, int x, int y, int z, uint32_t barrier) {
  SNUG_HOPPER(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
__device__ inline void write_smem_tile(const CUtensorMap& map, int x, int y, uint32_t from) {
  SNUG_HOPPER("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
              "r"(y), "r"(from)
              : "memory");
}
__device__ inline void commit_writes() { SNUG_HOPPER("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most `pending` of the groups that this thread committed last still read shared memory.
template <int pending>
__device__ void wait_writes() {
  SNUG_HOPPER("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
// Makes this thread's stores to shared memory visible to copies that it, or a thread that it meets, begins later.
__device__ inline void show_copies() { SNUG_HOPPER("fence.proxy.async.shared::cta;" ::: "memory"); }

// Fetches `width` rows or columns of a factor by kDepth of the summed dimension, as smem tiles; `transposed` says that
// the latter are rows of the factor. Each of `shares` blocks fetches its share of them.
template <bool transposed, int width, int shares>
struct SmemTiles {
  static constexpr int kShare = width / shares, kRows = transposed ? kDepth : std::min(kShare, 128);
  static constexpr int kCount = transposed ? kShare / kSmemTileColumns : kShare / kRows, kBytes = kRows * kRowBytes;
  static_assert(kShare % kSmemTileColumns == 0);

  __device__ static void fetch(uint32_t tile, const CUtensorMap& map, int first, int depth, int share,
                               uint32_t barrier) {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const int smem_tile = share * kCount + i;
      const uint32_t to = tile + static_cast<uint32_t>(smem_tile * kBytes);
      if constexpr (transposed)
        fetch_smem_tile<(shares > 1)>(to, map, first + smem_tile * kSmemTileColumns, depth, barrier);
      else
        fetch_smem_tile<(shares > 1)>(to, map, depth, first + smem_tile * kRows, barrier);
    }
  }
};

using LeftTiles = SmemTiles<false, kTileM, 1>;
template <bool transpose_b>
using RightTiles = SmemTiles<!transpose_b, kTileN, kBlocks>;

// ---- The producer warpgroup -----------------------------------------------------------------------------------------

// Says what a tile's low-rank product multiplies: the columns of u that belong to the part of the result's columns in
// which the tile is; or, if its halves are in two parts, all of u, and of v the columns of each half, beside zeros in
// those of the other.
enum class LowRank { OfPart, OfHalves };

template <bool transpose_b, LowRank low_rank>
__device__ void fetch_tiles(const Factors& w, Ring<kStages> ring, uint32_t stages) {
  const int block = block_in_cluster();
  const auto begin_stage = [&] {
    ring.await_empty();  // in both blocks
    arrive_and_expect(ring.full(), kStageBytes);
    return stages + static_cast<uint32_t>(ring.slot * kStageBytes);
  };
  for (int tile = first_tile(); tile < w.order.count(); tile += clusters()) {
    const int2 place = w.order.place(tile);
    const int row = w.row(place), column = w.column(place);
    // This is the column of the half that this block fetches, as RightTiles counts.
    const int right = column + block * (w.second_half - kTileHalf);
    for (int step = 0; step < w.steps; step++, ring.advance()) {
      const uint32_t at = begin_stage();
      LeftTiles::fetch(at, w.a, row, step * kDepth, 0, ring.full());
      RightTiles<transpose_b>::fetch(at + kLeftBytes, w.b, right, step * kDepth, block, ring.full());
    }
    for (int step = 0; step < w.low_rank_steps; step++, ring.advance()) {
      const uint32_t at = begin_stage();
      int depth = step * kDepth;
      if constexpr (low_rank == LowRank::OfHalves) {
        LeftTiles::fetch(at, w.u, row, depth, 0, ring.full());
        depth -= block * w.rank;  // columns before the first are zeros too
      } else {
        fetch_smem_tile(at, w.u, depth, w.part(column), row, ring.full());
      }
      RightTiles<transpose_b>::fetch(at + kLeftBytes, w.v, right, depth, block, ring.full());
    }
  }
}

// ---- The consumer warpgroups ----------------------------------------------------------------------------------------

#define SNUG_REGISTERS_128                                                                                           \
  SNUG_REGISTERS_64                                                                                                  \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, " \
  "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
  "%125, %126, %127"

// Computes s (+)= a b for 16 of the summed dimension, which are rows of b if that is `transposed`.
template <bool transposed_b>
__device__ void product(Sum (&s)[kSumColumns], uint64_t a, uint64_t b, bool add) {
  SNUG_HOPPER(
      "{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{" SNUG_REGISTERS_128 "}, %128, %129, p, 1, 1, 0, %131;}"
      : SNUG_SUMS_8(s, 0), SNUG_SUMS_8(s, 8), SNUG_SUMS_8(s, 16), SNUG_SUMS_8(s, 24)
      : "l"(a), "l"(b), "r"(int{add}), "n"(int{transposed_b}));
}

// Describes the slices of a factor's tile in the stages, each 16 of the summed dimension, which one instruction
// multiplies, from this thread's first row or column on.
template <bool transposed>
class SmemTileDescriptors {
 public:
  // In a cluster, addresses have the block's number above 2^24, where the descriptor has the distance of smem tiles.
  __device__ explicit SmemTileDescriptors(uint32_t first)
      : first_(matrix_at(first % (1u << 24), transposed ? kSmemTileBytes : 16)) {}
  __device__ uint64_t at(int slot, int k) const {
    return moved(first_, slot * kStageBytes + k * (transposed ? 16 * kRowBytes : 32));
  }

 private:
  uint64_t first_;
};

// Loads eight numbers that are not read again soon.
__device__ inline uint4 load_once(const BFloat16* from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

// Holds this warp's 16 rows of a tile, rounded.
struct RoundedRows {
  uint32_t pairs[kSumColumns][2];
  __device__ void round(const Sum (&s)[kSumColumns]) {
#pragma unroll
    for (int j = 0; j < kSumColumns; j++)
#pragma unroll
      for (int half = 0; half < 2; half++) pairs[j][half] = packed(s[j][2 * half], s[j][2 * half + 1]);
  }
  // Writes half of the columns, through the warp's smem tiles at `epilogue_tiles`.
  template <int half>
  __device__ void write(const CUtensorMap& to, int row, int column, uint32_t epilogue_tiles) const {
    const uint32_t lane = threadIdx.x % 32, line = lane % 16;
    if (lane == 0) wait_writes<0>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4 * kEpilogueTiles; j++) {
      const auto &left = pairs[8 * kEpilogueTiles * half + 2 * j],
                 &right = pairs[8 * kEpilogueTiles * half + 2 * j + 1];
      const uint32_t to_chunk = epilogue_tiles + static_cast<uint32_t>(j / 4 * kEpilogueTileBytes) + line * kRowBytes +
                                ((static_cast<uint32_t>(2 * (j % 4)) + lane / 16) ^ line % 8) * 16;
      SNUG_HOPPER("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to_chunk), "r"(left[0]),
                  "r"(left[1]), "r"(right[0]), "r"(right[1])
                  : "memory");
    }
    show_copies();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kEpilogueTiles; i++)
        write_smem_tile(to, column + i * kSmemTileColumns, row,
                        epilogue_tiles + static_cast<uint32_t>(i * kEpilogueTileBytes));
      commit_writes();
    }
  }
};
static_assert(kEpilogueTiles * kSmemTileColumns == kTileHalf);

struct Nothing {};

// Multiplies. Epilogue makes tiles of sums into results. It has
//   kLowRank, and Params, which describe the matrices that it reads and writes in global memory;
//   begin(params, row, column, issue_stages), which requests the operands that must be there when a tile's sums are;
//   take(s, begun), which takes the sums of this warp's 16 rows of the tile and keeps them in registers;
//   write(params, row, column, epilogue_tiles, issue_stages), which writes them, or nothing outside of the result.
// It calls issue_stages(n) in between, with n that rise: this issues the products of the next tile's stages up to n,
// and does nothing if the tile has no more.
template <class Epilogue, bool transpose_b>
__device__ void multiply_tiles(const Factors& w, const typename Epilogue::Params& params, Ring<kStages> ring,
                               uint32_t stages, uint32_t epilogue_tiles) {
  // The warp is taken from one lane, so that the compiler knows that all its threads have one value.
  const int warp = __shfl_sync(kAll, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const SmemTileDescriptors<false> a{stages +
                                     static_cast<uint32_t>(warp / 4 * 64 * kRowBytes)};  // the warpgroup's 64 rows
  const SmemTileDescriptors<!transpose_b> b{stages + kLeftBytes};
  epilogue_tiles += static_cast<uint32_t>(warp * kEpilogueTiles * kEpilogueTileBytes);

  Ring<kStages> before = ring;
  Sum s[kSumColumns];
  const auto release = [&] {
    if (lane < kBlocks) arrive_at(before.empty(), lane);
  };
  // The stage before is released when only this one's products are under way.
  const auto end_stage = [&](bool first) {
    commit_products();
    wait_products<1>();
    if (!first) release();
    before = ring;
    ring.advance();
  };
  const auto multiply_stage = [&](int step) {
    ring.await_full();
    begin_products();
#pragma unroll
    for (int k = 0; k < kSlicesPerStage; k++)
      product<!transpose_b>(s, a.at(ring.slot, k), b.at(ring.slot, k), step > 0 || k > 0);
    end_stage(step == 0);
  };
  const auto multiply_low_rank_stage = [&](int slices) {
    ring.await_full();
    begin_products();
#pragma unroll
    for (int k = 0; k < kSlicesPerStage; k++)
      if (k < slices) product<!transpose_b>(s, a.at(ring.slot, k), b.at(ring.slot, k), true);
    end_stage(false);
  };

  Epilogue epilogue;
  int written_row = w.m, written_column = 0;
  for (int tile = first_tile(); tile < w.order.count(); tile += clusters()) {
    int step = 0;
    const auto issue_stages = [&](int stage) {
      for (; step < min(w.steps, stage); step++) multiply_stage(step);
    };
    epilogue.write(params, written_row, written_column, epilogue_tiles, issue_stages);
    const int2 place = w.order.place(tile);
    const int row = w.row(place) + warp * 16, column = w.column(place);
    const auto begun = epilogue.begin(params, row, column, issue_stages);
    issue_stages(w.steps);
    for (int slices = w.low_rank_slices; slices > 0; slices -= kSlicesPerStage) multiply_low_rank_stage(slices);
    wait_products<0>();
    fence(s);
    release();
    epilogue.take(s, begun);
    written_row = row;
    written_column = column;
  }
  epilogue.write(params, written_row, written_column, epilogue_tiles, [](int) {});
  if (lane == 0) wait_writes<0>();
}

// ---- Kernel ---------------------------------------------------------------------------------------------------------

template <class Epilogue, bool transpose_b>
__global__ void __launch_bounds__(kPipelineThreads, 1)
    product_kernel(const __grid_constant__ Factors w, const __grid_constant__ typename Epilogue::Params params) {
  __shared__ uint64_t barriers[Ring<kStages>::kBytes / 8];
  const Ring<kStages> ring{shared_address(barriers)};
  const uint32_t stages = tiles_start();
  if (threadIdx.x == 0) ring.make(1, kBlocks * kProductWarps);
  publish_barriers();
  meet_cluster();
  if (is_producer()) {
    deallocate_registers<kProducerRegisters>();
    if (threadIdx.x == kPipelineThreads - 128) fetch_tiles<transpose_b, Epilogue::kLowRank>(w, ring, stages);
  } else {
    allocate_registers<kConsumerRegisters>();
    multiply_tiles<Epilogue, transpose_b>(w, params, ring, stages, stages + kStages * kStageBytes);
  }
  __syncwarp();
  meet_cluster();  // others still arrive at this block's barriers
}

// ---- On the host ----------------------------------------------------------------------------------------------------

inline BFloat16* numbers(const TensorView& x) { return reinterpret_cast<BFloat16*>(x.data); }
inline int64_t stride_of(const TensorView& x) { return x.rows() > 1 ? x.row_stride : x.cols(); }

// Returns the map of a matrix in smem tiles of 64 columns and `box_rows` rows.
inline CUtensorMap map_of(const TensorView& x, int box_rows) {
  return tensor_map(numbers(x), {x.cols(), x.rows()}, {stride_of(x)}, {kSmemTileColumns, box_rows});
}

// Returns the factors of a b, or a b^T, with a result of n columns.
inline Factors factors_of(const TensorView& a, const TensorView& b, bool transpose_b, int64_t n) {
  const auto tiles_over = [](int64_t extent, int each) { return static_cast<int>(ceil_div(extent, each)); };
  Factors w{};
  w.a = map_of(a, LeftTiles::kRows);
  w.b = map_of(b, transpose_b ? RightTiles<true>::kRows : RightTiles<false>::kRows);
  w.order = {tiles_over(a.rows(), kBlocks * kTileM), tiles_over(n, kTileN)};
  w.m = static_cast<int>(a.rows());
  w.steps = tiles_over(a.cols(), kDepth);
  return w;
}

// Adds u v, or u v^T: `depth` columns of u are summed over, of all that it has.
inline void add_low_rank(Factors& w, const TensorView& v, bool transpose_b, int64_t depth) {
  w.v = map_of(v, transpose_b ? RightTiles<true>::kRows : RightTiles<false>::kRows);
  w.low_rank_steps = static_cast<int>(ceil_div(depth, kDepth));
  w.low_rank_slices = static_cast<int>(ceil_div(depth, 16));
}

template <class Epilogue, bool transpose_b>
Launch product_launch(const Factors& w, const typename Epilogue::Params& params, cudaStream_t stream) {
  const ClusterKernel<Factors, typename Epilogue::Params> kernel(product_kernel<Epilogue, transpose_b>, {kBlocks, 1, 1},
                                                                 kPipelineThreads, kSharedBytes);
  const int clusters = std::clamp(kernel.resident_clusters(), 1, w.order.rows * w.order.columns);
  const dim3 grid(static_cast<unsigned>(clusters * kBlocks));
  return [=](const RuntimeScalars&) { kernel.launch(grid, stream, "a product", w, params); };
}

}  // namespace snug::cuda
