#include <algorithm>

#include "backend/cuda/facts.h"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/fused.h"

// Computes an adapter's gradients. A block takes kAdapterCols columns of a part of dy and a range of its rows, in
// stages of kAdapterRows, which come by cp.async several stages ahead, each row 16 bytes further from a multiple of 128
// than the one before, so that ldmatrix uses no bank twice. For each stage it multiplies dy transposed with xa, which
// gives partial sums of db over the range, kWarpCols columns a warp, that stay in registers; and dy with b, which lies
// in registers: partial sums of dxa over the columns, 16 rows and kTeamCols columns a warp, added up over the block's
// teams. A second kernel adds partial sums in order.
namespace snug::cuda {
namespace {

constexpr int kSharedBytes = 225 << 10;  // the most that a block may have

// Fetches 16 bytes from global to shared memory in the background; zeros if they are not inside. `once` says that this
// kernel does not read them again, so that they leave the L2 cache first, which is faster (qkv 70 us, 76 without).
template <bool once>
__device__ void fetch_inside(BFloat16* to, const BFloat16* from, bool inside) {
  if constexpr (once) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to)),
                 "l"(from), "r"(inside ? 16 : 0), "l"(policy)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(inside ? 16 : 0)
                 : "memory");
  }
}

// Gives the sizes of tiles for a rank of 8 N.
template <int N>
struct Shapes {
  static constexpr int kRank = 8 * N, kCols = kAdapterCols, kRows = kAdapterRows;
  static constexpr int kWarpCols = 64, kThreads = kCols / kWarpCols * 32;
  static constexpr int kPitch = kCols + 8, kNarrow = kRows * kPitch;  // in elements; where xa's rows begin
  static constexpr int kNarrowPitch = 8 * (N % 2 ? N + 2 : N + 1);
  static constexpr int kElements = kNarrow + kRows * kNarrowPitch;  // of a stage
  static constexpr int kGroups = kRows / 16, kTeamCols = kWarpCols * kGroups, kTeams = kCols / kTeamCols;
  static constexpr int kSumBytes = kTeams * kRows * kRank * static_cast<int>(sizeof(float));
  static constexpr int kFit = (kSharedBytes - kSumBytes) / (kElements * 2), kStages = kFit < 6 ? kFit : 6;
  static constexpr int kBytes = kStages * kElements * 2 + kSumBytes;
  static_assert(kStages >= 3);

  using Down = Sum[kWarpCols / 16][N];
  using Right = uint32_t[kTeamCols / 16][N][2];
};

struct Part {
  int begin, end, first_block, first_row;  // columns of dy, blocks of columns, rows of b and db
};

struct Backward {
  Rows<BFloat16> dy, b, xa;
  float* down;    // [ranges, rows of db, rank]
  float* across;  // [column blocks, rows, rank]
  int64_t rows, b_rows;
  int parts;
  Part part[3];
};

// Says which columns and rows of dy a block takes.
struct Place {
  int part, first_col, cols, b_row;
  int64_t begin;  // in stages
  int steps;
};

template <int N>
__device__ Place place_of(const Backward& op) {
  const int block = static_cast<int>(blockIdx.x);
  Place place{};
  Part part = op.part[0];
#pragma unroll
  for (int p = 1; p < 3; p++)  // by constant places: others would move the whole op to local memory
    if (p < op.parts && block >= op.part[p].first_block) {
      place.part = p;
      part = op.part[p];
    }
  const int inside = (block - part.first_block) * Shapes<N>::kCols;
  place.first_col = part.begin + inside;
  place.cols = min(Shapes<N>::kCols, part.end - place.first_col);
  place.b_row = part.first_row + inside;
  const int64_t units = (op.rows + Shapes<N>::kRows - 1) / Shapes<N>::kRows;
  place.begin = units * blockIdx.y / gridDim.y;
  place.steps = static_cast<int>(units * (blockIdx.y + 1) / gridDim.y - place.begin);
  return place;
}

// Fetches in each thread one group of columns of every kLines-th row.
template <int N>
struct Fetcher {
  using S = Shapes<N>;
  static constexpr int kChunks = S::kCols / 8, kLines = S::kThreads / kChunks;

  __device__ Fetcher(const Backward& operands, const Place& place, BFloat16* shared)
      : op(operands), at(place), stages(shared) {}
  __device__ void operator()() {
    if (fetched < at.steps) {
      const int thread = static_cast<int>(threadIdx.x), line = thread / kChunks, chunk = thread % kChunks * 8;
      const int64_t row = (at.begin + fetched) * S::kRows;
      const int left = static_cast<int>(min(int64_t{S::kRows}, op.rows - row));
      BFloat16* const to = stages + fetched % S::kStages * S::kElements;
      const BFloat16* from = chunk < at.cols ? op.dy.at(row + line, at.first_col + chunk) : op.dy.data;
#pragma unroll
      for (int i = 0; i < S::kRows; i += kLines) {
        const bool inside = chunk < at.cols && line + i < left;
        fetch_inside<true>(to + (line + i) * S::kPitch + chunk, inside ? from : op.dy.data, inside);
        if (chunk < at.cols) from += kLines * op.dy.stride;
      }
      for (int i = thread; i < S::kRows * N; i += S::kThreads) {
        const bool inside = i / N < left;
        fetch_inside<false>(to + S::kNarrow + i / N * S::kNarrowPitch + i % N * 8,
                            inside ? op.xa.at(row + i / N, at.part * S::kRank + i % N * 8) : op.xa.data, inside);
      }
      fetched++;
    }
    commit_fetches();
  }

  const Backward& op;
  const Place& at;
  BFloat16* stages;
  int fetched = 0;
};

template <int N>
__device__ void fetch_b(typename Shapes<N>::Right& b, const Backward& op, const Place& at, int team) {
  using S = Shapes<N>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto bits = [&](int col, int n) {
    return col < at.cols ? uint32_t{op.b.at(at.b_row + col, n * 8 + lane / 4)->bits} : 0u;
  };
#pragma unroll
  for (int s = 0; s < S::kTeamCols / 16; s++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int col = team * S::kTeamCols + s * 16 + j * 8 + lane % 4 * 2;
        b[s][n][j] = bits(col, n) | bits(col + 1, n) << 16;
      }
}

// Computes sums += dy^T xa.
template <int N>
__device__ void multiply_down(typename Shapes<N>::Down& sums, const BFloat16* tile) {
  using S = Shapes<N>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const BFloat16* const left_at =
      tile + (lane % 8 + lane / 16 * 8) * S::kPitch + warp * S::kWarpCols + lane / 8 % 2 * 8;
  const BFloat16* const right_at = tile + S::kNarrow + lane % 16 * S::kNarrowPitch + lane / 16 * 8;
#pragma unroll
  for (int row = 0; row < S::kRows; row += 16) {
    Fragment right[(N + 1) / 2];
#pragma unroll
    for (int n = 0; n < N; n += 2) load_matrices_transposed(right[n / 2], right_at + row * S::kNarrowPitch + n * 8);
#pragma unroll
    for (int t = 0; t < S::kWarpCols / 16; t++) {
      Fragment left;
      load_matrices_transposed(left, left_at + row * S::kPitch + t * 16);
#pragma unroll
      for (int n = 0; n < N; n++) multiply(sums[t][n], left, right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
    }
  }
}

// Writes the stage's rows of dy b over the block's columns to `across`.
template <int N>
__device__ void multiply_across(const BFloat16* tile, const typename Shapes<N>::Right& b, float* team_sums,
                                float* across, int64_t rows) {
  using S = Shapes<N>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int group = warp % S::kGroups, team = warp / S::kGroups;
  Sum sums[N] = {};
  const BFloat16* const at = tile + (group * 16 + lane % 16) * S::kPitch + team * S::kTeamCols + lane / 16 * 8;
#pragma unroll
  for (int s = 0; s < S::kTeamCols / 16; s++) {
    Fragment left;
    load_matrices(left, at + s * 16);
#pragma unroll
    for (int n = 0; n < N; n++) multiply(sums[n], left, b[s][n][0], b[s][n][1]);
  }
  auto* const mine = reinterpret_cast<float4*>(team_sums) + (team * S::kGroups + group) * N * 32 + lane;
#pragma unroll
  for (int n = 0; n < N; n++) mine[n * 32] = {sums[n][0], sums[n][1], sums[n][2], sums[n][3]};
  __syncthreads();
#pragma unroll
  for (int e = thread; e < S::kRows * S::kRank; e += S::kThreads) {
    const int row = e / S::kRank, col = e % S::kRank;
    const int place = ((row / 16 * N + col / 8) * 32 + row % 8 * 4 + col % 8 / 2) * 4 + row / 8 % 2 * 2 + col % 2;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < S::kTeams; i++) sum += team_sums[i * S::kRows * S::kRank + place];
    if (row < rows) across[e] = sum;
  }
}

template <int N>
__global__ void __launch_bounds__(Shapes<N>::kThreads, 1) adapter_backward_kernel(Backward op) {
  using S = Shapes<N>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto* const stages = reinterpret_cast<BFloat16*>(shared_bytes);
  auto* const team_sums = reinterpret_cast<float*>(stages + S::kStages * S::kElements);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Place at = place_of<N>(op);
  Fetcher<N> fetch(op, at, stages);
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1; i++) fetch();
  typename S::Right b;
  fetch_b<N>(b, op, at, warp / S::kGroups);
  typename S::Down sums = {};
  for (int step = 0; step < at.steps; step++) {
    wait_fetches<S::kStages - 2>();
    __syncthreads();
    fetch();
    const BFloat16* const tile = stages + step % S::kStages * S::kElements;
    multiply_down<N>(sums, tile);
    const int64_t row = (at.begin + step) * S::kRows;
    multiply_across<N>(tile, b, team_sums, op.across + (blockIdx.x * op.rows + row) * S::kRank, op.rows - row);
  }
  float* const down = op.down + (blockIdx.y * op.b_rows + at.b_row) * S::kRank;
#pragma unroll
  for (int t = 0; t < S::kWarpCols / 16; t++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int col = warp * S::kWarpCols + t * 16 + j / 2 * 8 + lane / 4;
        if (col < at.cols) down[int64_t{col} * S::kRank + n * 8 + lane % 4 * 2 + j % 2] = sums[t][n][j];
      }
}

// ---- Partial sums ---------------------------------------------------------------------------------------------------

// Describes out = alpha times the sum of `count` dense matrices of fp32 that lie one after the other at `partials`.
struct OrderedSum {
  const float* partials;
  std::byte* out;
  int64_t stride;  // of rows of out
  int count, rows, cols, first_block;
  bool round;  // to bf16
  float alpha;
};

// Holds several such sums, for one launch.
struct OrderedSums {
  OrderedSum sums[4];
  int count = 0, blocks = 0;

  void add(const float* partials, int64_t partial_count, const TensorView& out, float alpha) {
    sums[count++] = {partials,
                     out.data,
                     out.row_stride,
                     static_cast<int>(partial_count),
                     static_cast<int>(out.rows()),
                     static_cast<int>(out.cols()),
                     blocks,
                     out.dtype == DType::BF16,
                     alpha};
    blocks += static_cast<int>(blocks_of(out.count(), kThreads));
  }
};

__global__ void __launch_bounds__(kThreads) ordered_sum_kernel(OrderedSums all) {
  int which = 0;
  while (which + 1 < all.count && static_cast<int>(blockIdx.x) >= all.sums[which + 1].first_block) which++;
  const OrderedSum& op = all.sums[which];
  const int i = (static_cast<int>(blockIdx.x) - op.first_block) * kThreads + static_cast<int>(threadIdx.x);
  const int row = i / op.cols, col = i % op.cols;
  if (row >= op.rows) return;
  const int64_t elements = int64_t{op.rows} * op.cols;
  const float* const from = op.partials + i;
  float sum = 0;
  // So many reads are on their way at once: where matrices are small, nothing else hides their time. Beyond the last
  // matrix it is read again, and not added.
  constexpr int kTogether = 16;
  for (int first = 0; first < op.count; first += kTogether) {
    float values[kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; t++) values[t] = from[min(first + t, op.count - 1) * elements];
#pragma unroll
    for (int t = 0; t < kTogether; t++) sum = first + t < op.count ? sum + values[t] : sum;
  }
  sum *= op.alpha;
  const int64_t to = row * op.stride + col;
  if (op.round)
    store(reinterpret_cast<BFloat16*>(op.out)[to], sum);
  else
    reinterpret_cast<float*>(op.out)[to] = sum;
}

// ---- Binding --------------------------------------------------------------------------------------------------------

template <int N>
std::optional<Launch> bind_for(const Backward& op, const dim3& grid, const OrderedSums& sums, cudaStream_t stream) {
  using S = Shapes<N>;
  if (device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) < S::kBytes) return std::nullopt;
  allow_shared(adapter_backward_kernel<N>, S::kBytes);
  return [=](const RuntimeScalars&) {
    adapter_backward_kernel<N><<<grid, S::kThreads, S::kBytes, stream>>>(op);
    check_launch("an adapter's gradients");
    ordered_sum_kernel<<<static_cast<unsigned>(sums.blocks), kThreads, 0, stream>>>(sums);
    check_launch("an adapter's gradients");
  };
}

}  // namespace

MaybeLaunch bind_kernel(const AdapterBackward& op, std::span<const TensorView> views, cudaStream_t stream) {
  const TensorView &dy = views[0], &b = views[1], &xa = views[2], &dxa = views[3], &db = views[4];
  const int64_t rows = dy.rows(), rank = b.cols();
  if (!unlike_adapter_kernel(op, views).empty()) return std::nullopt;
  const int64_t blocks = adapter_column_blocks(op.parts), ranges = adapter_ranges(rows, blocks);
  auto* const across = reinterpret_cast<float*>(views.back().data);
  Backward backward{Rows<BFloat16>(dy),
                    Rows<BFloat16>(b),
                    Rows<BFloat16>(xa),
                    across + blocks * rows * rank,
                    across,
                    rows,
                    b.rows(),
                    op.parts.count(),
                    {}};
  OrderedSums sums;
  int block = 0, row = 0;
  for (int p = 0; p < backward.parts; p++) {
    const auto i = static_cast<size_t>(p);
    const int begin = static_cast<int>(op.parts.begin[i]), end = static_cast<int>(op.parts.end[i]);
    backward.part[p] = {begin, end, block, row};
    const int part_blocks = (end - begin + kAdapterCols - 1) / kAdapterCols;
    TensorView out = dxa;
    out.data += p * rank * static_cast<int64_t>(sizeof(BFloat16));
    out.shape = {rows, rank};
    sums.add(across + block * rows * rank, part_blocks, out, op.scale);
    block += part_blocks;
    row += end - begin;
  }
  sums.add(backward.down, ranges, db, 1);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ranges));
  return rank == 8 ? bind_for<1>(backward, grid, sums, stream) : bind_for<2>(backward, grid, sums, stream);
}

}  // namespace snug::cuda
