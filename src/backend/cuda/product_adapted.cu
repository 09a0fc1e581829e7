// Computes a linear with its low-rank adapter inside.
#include "backend/cuda/fused.h"
#include "backend/cuda/product_tiles.cuh"
#include "program/adapter.h"

namespace snug::cuda {
namespace {

template <class IssueStages>
__device__ void write_rounded(const RoundedRows& rows, const CUtensorMap& d, int row, int column,
                              uint32_t epilogue_tiles, const IssueStages& issue_stages) {
  issue_stages(2);
  rows.write<0>(d, row, column, epilogue_tiles);
  issue_stages(3);
  rows.write<1>(d, row, column + kTileHalf, epilogue_tiles);
}

// Writes the rounded sums.
struct Rounded {
  static constexpr LowRank kLowRank = LowRank::OfPart;
  struct Params {
    CUtensorMap d;
  };
  RoundedRows rows;

  template <class IssueStages>
  __device__ void write(const Params& params, int row, int column, uint32_t epilogue_tiles,
                        const IssueStages& issue_stages) const {
    write_rounded(rows, params.d, row, column, epilogue_tiles, issue_stages);
  }
  template <class IssueStages>
  __device__ Nothing begin(const Params&, int, int, const IssueStages&) const {
    return {};
  }
  __device__ void take(const Sum (&s)[kSumColumns], const Nothing&) { rows.round(s); }
};

// Writes the rounded sums of the product and c: a matrix, or a row for all rows.
struct Added {
  static constexpr LowRank kLowRank = Rounded::kLowRank;
  struct Params {
    CUtensorMap d;
    const BFloat16* c;
    int64_t c_stride;  // 0: one row for all rows
    int m, n;
  };
  // Holds this thread's elements of c: groups of four runs of 8 columns, which lie in memory transposed over four
  // lanes.
  struct Addend {
    uint4 groups[2][kSumColumns / 4];
  };
  RoundedRows rows;

  template <class IssueStages>
  __device__ void write(const Params& params, int row, int column, uint32_t epilogue_tiles,
                        const IssueStages& issue_stages) const {
    write_rounded(rows, params.d, row, column, epilogue_tiles, issue_stages);
  }
  template <class IssueStages>
  __device__ Addend begin(const Params& params, int row, int column, const IssueStages& issue_stages) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Addend addend;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int j = 0; j < kSumColumns / 4; j++) {
        uint4& group = addend.groups[half][j];
        group = {};
        const int r = row + lane / 4 + 8 * half, c = column + lane % 4 * 8 + 32 * j;
        if (r < params.m && c < params.n) group = load_once(params.c + r * params.c_stride + c);
      }
    issue_stages(8);  // they have probably arrived
#pragma unroll
    for (auto& half : addend.groups)
#pragma unroll
      for (uint4& group : half) group = transposed_pairs(group.x, group.y, group.z, group.w);
    return addend;
  }
  __device__ void take(Sum (&s)[kSumColumns], const Addend& addend) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int j = 0; j < kSumColumns / 4; j++) {
        const uint4& group = addend.groups[half][j];
        const uint32_t pairs[] = {group.x, group.y, group.z, group.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
          s[4 * j + i][2 * half] += low_number(pairs[i]);
          s[4 * j + i][2 * half + 1] += high_number(pairs[i]);
        }
      }
    rows.round(s);
  }
};

}  // namespace

MaybeLaunch bind_kernel(const AdaptedGemm& op, std::span<const TensorView> views, cudaStream_t stream) {
  const size_t count = operand_count(op);
  const std::span<const TensorView> used = views.first(count);
  const TensorView &a = used[0], &b = used[1], &u = used[2], &v = used[3], &d = used[count - 1];
  if (!warpgroups() || !unlike_tiles(op, used).empty()) return std::nullopt;
  const int64_t parts = op.transpose_b ? op.parts.count() : 1, rank = u.cols() / parts;
  Factors w = factors_of(a, b, op.transpose_b, d.cols());
  w.u = tensor_map(numbers(u), {rank, parts, u.rows()}, {rank, stride_of(u)}, {kSmemTileColumns, 1, kTileM});
  add_low_rank(w, v, op.transpose_b, rank);
  for (size_t i = 0; i < 2; i++)
    w.ends[i] = static_cast<int>(static_cast<int64_t>(i) + 1 < parts ? op.parts.end[i] : d.cols());
  const CUtensorMap to = map_of(d, 16);
  if (!op.transpose_b) return product_launch<Rounded, false>(w, {to}, stream);
  if (!op.addend && !op.bias) return product_launch<Rounded, true>(w, {to}, stream);
  const Added::Params params{to, numbers(used[4]), op.addend ? used[4].row_stride : 0, w.m, static_cast<int>(d.cols())};
  return product_launch<Added, true>(w, params, stream);
}

}  // namespace snug::cuda
