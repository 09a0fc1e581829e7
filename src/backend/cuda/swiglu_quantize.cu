// Computes SwiGLU, or its gradients, and writes codes in fp8 of what it computes beside it.
#include <cooperative_groups.h>

#include "backend/cuda/facts.h"
#include "backend/cuda/fp8.cuh"
#include "backend/cuda/fused.h"
#include "backend/cuda/launches.cuh"
#include "backend/cuda/swiglu.cuh"
#include "program/swiglu_quantize.h"

namespace snug::cuda {
namespace {

constexpr int kRowThreads = 512, kGroupsPerThread = 2, kWarps = kRowThreads / 32;
static_assert(kRowThreads * kGroupsPerThread * kWide == kClusterColumns);

using Group = Raw<BFloat16, kWide>;

// Names the operands; h is dh where gradients are computed, and ends as h if `restore` says so.
struct SwiGluRows {
  const BFloat16* gate_up;
  BFloat16 *h, *dgate_up;
  uint8_t* codes;
  const float* factors;
  float *scales, *column_max;
  int64_t gate_up_stride, h_stride, dgate_up_stride, codes_stride;
  int64_t rows;
  int columns, block_columns;  // of h
  bool restore;
  SigmoidGate gate;
};

// Holds rounded numbers of a row in registers, and with kColumns the largest of their columns so far.
template <bool kColumns>
struct Held {
  Pack<uint32_t, kWide / 2> words;
  ColumnMax<kWide> largest[1];

  __device__ Pack<float, kWide> floats() const { return Group{words}.floats(); }
  // Rounds the numbers, holds them and writes them.
  __device__ void put(const Pack<float, kWide>& values, BFloat16* to) {
#pragma unroll
    for (int k = 0; k < kWide; k += 2)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[k / 2]) : "f"(values[k + 1]), "f"(values[k]));
    save<kWide / 2>(reinterpret_cast<uint32_t*>(to), words);
    if constexpr (kColumns) largest[0].add(words);
  }
};

// Is a block's part of the rows: of each it has columns [begin, end) of h, and of gate and up.
template <bool kBackward, bool kColumns>
class RowPart {
 public:
  static constexpr int kInputs = kBackward ? 3 : 2, kResults = kBackward ? 2 : 1;
  static constexpr int kFetched = kRowThreads * kGroupsPerThread * kInputs * static_cast<int>(sizeof(Group));  // bytes

  __device__ RowPart(const SwiGluRows& op, unsigned char* shared_bytes)
      : op_(op),
        begin_(static_cast<int>(blockIdx.y) * op.block_columns),
        end_(min(op.columns, begin_ + op.block_columns)),
        shared_(shared_bytes),
        fetched_(reinterpret_cast<Group*>(shared_bytes) + threadIdx.x),
        factors_(reinterpret_cast<float*>(shared_bytes + kFetched)) {
    if constexpr (kBackward)
      for (int i = static_cast<int>(threadIdx.x); i < end_ - begin_; i += kRowThreads) {
        factors_[i] = op.factors[begin_ + i];
        factors_[op.block_columns + i] = op.factors[op.columns + begin_ + i];
      }
  }

  // Begins to fetch a row, of which each thread will read what it has fetched itself.
  __device__ void fetch(int64_t row) const {
    if (row < op_.rows)
#pragma unroll
      for (int i = 0; i < kGroupsPerThread; i++) {
        if (!inside(i)) continue;
        const BFloat16* const gate = op_.gate_up + row * op_.gate_up_stride + column(i);
        fetch_group(slot(i, 0), gate);
        fetch_group(slot(i, 1), gate + op_.columns);
        if constexpr (kBackward) fetch_group(slot(i, 2), op_.h + row * op_.h_stride + column(i));
      }
    commit_fetches();
  }

  // Computes and writes a row that has been fetched, and holds what is to be quantized.
  __device__ void compute(int64_t row, const SigmoidGate& activation) {
    wait_fetches<0>();
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; i++) {
      if (!inside(i)) continue;
      const Pack<float, kWide> gate = slot(i, 0)->floats(), up = slot(i, 1)->floats();
      BFloat16* const h = op_.h + row * op_.h_stride + column(i);
      if constexpr (kBackward) {
        const Pack<float, kWide> d = slot(i, 2)->floats();
        Pack<float, kWide> dgate, dup, restored;
#pragma unroll
        for (int k = 0; k < kWide; k++) {
          const SwiGluGradient x = swiglu_gradient(d[k], activated<BFloat16>(gate[k], activation), up[k]);
          dgate[k] = x.dgate;
          dup[k] = x.dup;
          restored[k] = x.h;
        }
        BFloat16* const to = op_.dgate_up + row * op_.dgate_up_stride + column(i);
        held_[i][0].put(dgate, to);
        held_[i][1].put(dup, to + op_.columns);
        if (op_.restore) save_floats<kWide>(h, restored);
      } else {
        Pack<float, kWide> result;
#pragma unroll
        for (int k = 0; k < kWide; k++) result[k] = swiglu(activated<BFloat16>(gate[k], activation), up[k]);
        held_[i][0].put(result, h);
      }
    }
  }

  // Returns the largest absolute value that this thread holds, as bits.
  __device__ uint32_t largest() const {
    if constexpr (!kBackward) {
      Group words[kGroupsPerThread] = {};
#pragma unroll
      for (int i = 0; i < kGroupsPerThread; i++)
        if (inside(i)) words[i].words = held_[i][0].words;
      return abs_max_bits(words);
    }
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; i++)
#pragma unroll
      for (int result = 0; result < kResults; result++) {
        if (!inside(i)) continue;
        const Pack<float, kWide> floats = values(i, result);
#pragma unroll
        for (int k = 0; k < kWide; k++) largest = max(largest, abs_bits(floats[k]));
      }
    return largest;
  }

  __device__ void put_codes(int64_t row, float scale) const {
    const float factor = Fp8::factor(scale);
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; i++)
#pragma unroll
      for (int result = 0; result < kResults; result++)
        if (inside(i))
          Fp8::put<kWide>(op_.codes + row * op_.codes_stride + result * op_.columns + column(i), values(i, result),
                          scale, factor);
  }

  // Adds the largest values of this block's columns to all blocks', after the last row; called by all threads.
  __device__ void add_columns() const {
    __syncthreads();  // nobody reads what was fetched, or factors, any more
    auto* const found = reinterpret_cast<uint32_t*>(shared_);
#pragma unroll
    for (int result = 0; result < kResults; result++) {
#pragma unroll
      for (int i = 0; i < kGroupsPerThread; i++)
        if (inside(i)) held_[i][result].largest[0].put(found + place(i));
      __syncthreads();
      add_column_max(found, end_ - begin_, op_.column_max + result * op_.columns + begin_);
      __syncthreads();
    }
  }

 private:
  __device__ static int place(int i) { return (static_cast<int>(threadIdx.x) + i * kRowThreads) * kWide; }
  __device__ int column(int i) const { return begin_ + place(i); }
  __device__ bool inside(int i) const { return column(i) < end_; }
  __device__ Group* slot(int i, int input) const { return fetched_ + (i * kInputs + input) * kRowThreads; }
  // Returns the numbers that become codes.
  __device__ Pack<float, kWide> values(int i, int result) const {
    Pack<float, kWide> floats = held_[i][result].floats();
    if constexpr (kBackward) {
      const auto by = load<kWide>(factors_ + result * op_.block_columns + place(i));
#pragma unroll
      for (int k = 0; k < kWide; k++) floats[k] *= by[k];
    }
    return floats;
  }

  const SwiGluRows& op_;
  int begin_, end_;
  unsigned char* shared_;
  Group* fetched_;  // by group and input
  float* factors_;
  Held<kColumns> held_[kGroupsPerThread][kResults] = {};
};

// Takes row after row in a cluster of blocks, each of which holds what is quantized in registers until the row's
// largest number is known to all, while the next row comes into shared memory. Factors stay there.
template <bool kBackward, bool kColumns, bool kTanh>
__global__ void __launch_bounds__(kRowThreads, 2) swiglu_quantize_kernel(const __grid_constant__ SwiGluRows op) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  __shared__ uint32_t maxima[2][kMostClusterBlocks * kWarps];  // of warps of all blocks, for every other row
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int blocks = static_cast<int>(gridDim.y), rank = static_cast<int>(blockIdx.y);
  SigmoidGate activation = op.gate;
  activation.tanh = kTanh;  // known to the compiler
  const auto cluster = cooperative_groups::this_cluster();
  RowPart<kBackward, kColumns> part(op, shared_bytes);
  part.fetch(blockIdx.x);
  cluster.sync();  // all blocks are there, and the factors
  int buffer = 0;
  for (int64_t row = blockIdx.x; row < op.rows; row += gridDim.x, buffer = 1 - buffer) {
    part.compute(row, activation);
    part.fetch(row + gridDim.x);
    uint32_t largest = warp_max(part.largest());
    if (lane < blocks)
      *cluster.map_shared_rank(&maxima[buffer][rank * kWarps + warp], static_cast<unsigned>(lane)) = largest;
    cluster.sync();
    largest = 0;
    for (int i = lane; i < blocks * kWarps; i += 32) largest = max(largest, maxima[buffer][i]);
    const float scale = Fp8::scale(__uint_as_float(warp_max(largest)));
    if (rank == 0 && threadIdx.x == 0) op.scales[row] = scale;
    part.put_codes(row, scale);
  }
  if constexpr (kColumns) part.add_columns();
#endif
}

template <bool kBackward, bool kColumns, bool kTanh>
MaybeLaunch launch_of(SwiGluRows op, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(cluster_blocks(op.columns));
  op.block_columns = static_cast<int>(round_up(ceil_div(op.columns, static_cast<int>(blocks)), kWide));
  constexpr int64_t kFetched = RowPart<kBackward, kColumns>::kFetched;
  const int64_t factors = kBackward ? 2 * int64_t{op.block_columns} * int64_t{sizeof(float)} : 0;
  const ClusterKernel<SwiGluRows> kernel(swiglu_quantize_kernel<kBackward, kColumns, kTanh>, {1, blocks, 1},
                                         kRowThreads, static_cast<int>(kFetched + factors));
  const int clusters = kernel.resident_clusters();
  if (clusters == 0) return std::nullopt;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(clusters, op.rows)), blocks);
  const int quantized = op.columns * (kBackward ? 2 : 1);
  return [=](const RuntimeScalars&) {
    if constexpr (kColumns) clear_column_max(op.column_max, quantized, stream);
    if (op.rows > 0) kernel.launch(grid, stream, "swiglu_quantize", op);
    if constexpr (kColumns) scale_columns_by_max(op.column_max, quantized, stream);
  };
}

template <bool kBackward>
MaybeLaunch launch_of(const SwiGluRows& op, bool column_scales, cudaStream_t stream) {
  if (op.gate.tanh)
    return column_scales ? launch_of<kBackward, true, true>(op, stream) : launch_of<kBackward, false, true>(op, stream);
  return column_scales ? launch_of<kBackward, true, false>(op, stream) : launch_of<kBackward, false, false>(op, stream);
}

template <class Kind>
bool takes(const Kind& op, std::span<const TensorView> views) {
  return warpgroups() && unlike_clusters(op, views).empty();
}

// Returns the operands that both directions have.
template <class Kind>
SwiGluRows rows_of(const Kind& attrs, std::span<const TensorView> views, const TensorView& gate_up,
                   const TensorView& h) {
  const std::span<const TensorView> codes = views.subspan(before_codes(attrs));
  return {.gate_up = gate_up.as<BFloat16>(),
          .h = h.as<BFloat16>(),
          .dgate_up = nullptr,
          .codes = codes[0].as<uint8_t>(),
          .factors = nullptr,
          .scales = codes[1].as<float>(),
          .column_max = attrs.column_scales ? codes[2].as<float>() : nullptr,
          .gate_up_stride = gate_up.row_stride,
          .h_stride = h.row_stride,
          .dgate_up_stride = 0,
          .codes_stride = codes[0].row_stride,
          .rows = h.rows(),
          .columns = static_cast<int>(h.cols()),
          .block_columns = 0,
          .restore = false,
          .gate = SigmoidGate(attrs.activation)};
}

}  // namespace

MaybeLaunch bind_kernel(const SwiGluQuantize& op, std::span<const TensorView> views, cudaStream_t stream) {
  if (!takes(op, views)) return std::nullopt;
  return launch_of<false>(rows_of(op, views, views[0], views[1]), op.column_scales, stream);
}

MaybeLaunch bind_kernel(const SwiGluBackwardQuantize& op, std::span<const TensorView> views, cudaStream_t stream) {
  if (!takes(op, views)) return std::nullopt;
  SwiGluRows rows = rows_of(op, views, views[1], views[0]);
  rows.factors = views[2].as<float>();
  rows.dgate_up = views[3].as<BFloat16>();
  rows.dgate_up_stride = views[3].row_stride;
  rows.restore = op.restore;
  return launch_of<true>(rows, op.column_scales, stream);
}

}  // namespace snug::cuda
