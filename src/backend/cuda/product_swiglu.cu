// Computes a linear and the SwiGLU after it, or before it in the backward.
#include "backend/cuda/fused.h"
#include "backend/cuda/product_tiles.cuh"
#include "backend/cuda/swiglu.cuh"
#include "program/swiglu_gemm.h"

namespace snug::cuda {
namespace {

// Takes tiles of 128 columns of gate and as many of up, so that a thread has both for a number of h.
struct Gated {
  static constexpr LowRank kLowRank = LowRank::OfHalves;
  struct Params {
    CUtensorMap gate_up, h;
    int columns;  // of h
    bool result;  // whether h is asked for
    SigmoidGate gate;
  };
  RoundedRows rows;

  template <class IssueStages>
  __device__ void write(const Params& params, int row, int column, uint32_t epilogue_tiles,
                        const IssueStages& issue_stages) {
    issue_stages(2);
    rows.write<0>(params.gate_up, row, column, epilogue_tiles);
    issue_stages(3);
    rows.write<1>(params.gate_up, row, params.columns + column, epilogue_tiles);
    if (!params.result) return;
    constexpr int kHalf = kSumColumns / 2, kSumsPerStage = 4;
#pragma unroll
    for (int first = 0; first < kHalf; first += kSumsPerStage) {
      issue_stages(4 + first / kSumsPerStage);
#pragma unroll
      for (int j = first; j < first + kSumsPerStage; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          uint32_t& gate = rows.pairs[j][half];
          const uint32_t up = rows.pairs[kHalf + j][half];
          gate = packed(swiglu(activated<BFloat16>(low_number(gate), params.gate), low_number(up)),
                        swiglu(activated<BFloat16>(high_number(gate), params.gate), high_number(up)));
        }
    }
    issue_stages(4 + kHalf / kSumsPerStage);
    rows.write<0>(params.h, row, column, epilogue_tiles);
  }
  template <class IssueStages>
  __device__ Nothing begin(const Params&, int, int, const IssueStages&) const {
    return {};
  }
  __device__ void take(const Sum (&s)[kSumColumns], const Nothing&) { rows.round(s); }
};

// Takes tiles of dh; h is written in its place if it is to be restored. A thread has eight neighbours of a row, as it
// reads gate and up and writes their gradients.
struct GatedBackward {
  static constexpr LowRank kLowRank = LowRank::OfPart;
  struct Params {
    const BFloat16* gate_up;
    BFloat16 *dgate_up, *dh;
    int64_t gate_up_stride, dgate_up_stride, dh_stride;
    int m, columns;  // of dh
    bool restore;
    SigmoidGate gate;
  };
  static constexpr int kGroups = kSumColumns / 4;
  uint4 dh[kGroups][2];

  __device__ void take(const Sum (&s)[kSumColumns], const Nothing&) {
#pragma unroll
    for (int j = 0; j < kGroups; j++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const auto pair = [&](int i) { return packed(s[4 * j + i][2 * half], s[4 * j + i][2 * half + 1]); };
        dh[j][half] = transposed_pairs(pair(0), pair(1), pair(2), pair(3));
      }
  }

  template <class IssueStages>
  __device__ void write(const Params& params, int row, int column, uint32_t, const IssueStages& issue_stages) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row += lane / 4;
    column += lane % 4 * 8;
    const auto inside = [&](int i) { return row + 8 * (i % 2) < params.m && column + 32 * (i / 2) < params.columns; };
    uint4 gate{}, up{};
    const auto load = [&](int i) {
      if (!inside(i)) return;
      const BFloat16* const at = params.gate_up + (row + 8 * (i % 2)) * params.gate_up_stride + column + 32 * (i / 2);
      gate = load_once(at);
      up = load_once(at + params.columns);
    };
    // A step of two stages takes longer than its loads, and than the computation on them.
    load(0);
#pragma unroll
    for (int i = 0; i < 2 * kGroups; i++) {
      issue_stages(2 * (i + 1));
      const uint4 g = gate, u = up;
      if (i + 1 < 2 * kGroups) load(i + 1);
      if (inside(i)) write_gradients(params, row + 8 * (i % 2), column + 32 * (i / 2), dh[i / 2][i % 2], g, u);
    }
  }
  template <class IssueStages>
  __device__ Nothing begin(const Params&, int, int, const IssueStages&) const {
    return {};
  }

 private:
  static __device__ void write_gradients(const Params& params, int row, int column, const uint4& dh, const uint4& gate,
                                         const uint4& up) {
    const uint32_t d[] = {dh.x, dh.y, dh.z, dh.w}, g[] = {gate.x, gate.y, gate.z, gate.w},
                   u[] = {up.x, up.y, up.z, up.w};
    Pack<uint32_t, 4> dgate, dup, h;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const Activated low_gate = activated<BFloat16>(low_number(g[i]), params.gate),
                      high_gate = activated<BFloat16>(high_number(g[i]), params.gate);
      const SwiGluGradient low = swiglu_gradient(low_number(d[i]), low_gate, low_number(u[i])),
                           high = swiglu_gradient(high_number(d[i]), high_gate, high_number(u[i]));
      dgate[i] = packed(low.dgate, high.dgate);
      dup[i] = packed(low.dup, high.dup);
      h[i] = params.restore ? packed(low.h, high.h) : d[i];
    }
    BFloat16* const at = params.dgate_up + row * params.dgate_up_stride + column;
    save<4>(reinterpret_cast<uint32_t*>(at), dgate);
    save<4>(reinterpret_cast<uint32_t*>(at + params.columns), dup);
    save<4>(reinterpret_cast<uint32_t*>(params.dh + row * params.dh_stride + column), h);
  }
};

template <class Kind>
bool takes(const Kind& op, std::span<const TensorView> views) {
  return warpgroups() && unlike_tiles(op, views).empty();
}

}  // namespace

MaybeLaunch bind_kernel(const SwiGluGemm& op, std::span<const TensorView> views, cudaStream_t stream) {
  const size_t factors = factor_count(op);
  const TensorView& gate_up = views[factors];
  if (!takes(op, views)) return std::nullopt;
  Factors w = factors_of(views[0], views[1], true, gate_up.cols());
  const int columns = static_cast<int>(gate_up.cols() / 2);
  w.tile_columns = kTileHalf;
  w.second_half = columns;
  if (factors > 2) {
    w.u = map_of(views[2], kTileM);
    w.rank = static_cast<int>(views[3].cols());
    add_low_rank(w, views[3], true, views[2].cols());
  }
  const Gated::Params params{map_of(gate_up, 16), map_of(op.result ? views[factors + 1] : gate_up, 16), columns,
                             op.result, SigmoidGate(op.activation)};
  return product_launch<Gated, true>(w, params, stream);
}

MaybeLaunch bind_kernel(const SwiGluGemmBackward& op, std::span<const TensorView> views, cudaStream_t stream) {
  const size_t factors = factor_count(op);
  const TensorView &gate_up = views[factors], &dgate_up = views[factors + 1], &dh = views[factors + 2];
  if (!takes(op, views)) return std::nullopt;
  Factors w = factors_of(views[0], views[1], false, dh.cols());
  if (factors > 2) {
    w.u = tensor_map(numbers(views[2]), {views[2].cols(), 1, views[2].rows()}, {views[2].cols(), stride_of(views[2])},
                     {kSmemTileColumns, 1, kTileM});
    w.ends[0] = w.ends[1] = static_cast<int>(dh.cols());
    add_low_rank(w, views[3], false, views[2].cols());
  }
  GatedBackward::Params params{.gate_up = numbers(gate_up),
                               .dgate_up = numbers(dgate_up),
                               .dh = numbers(dh),
                               .gate_up_stride = gate_up.row_stride,
                               .dgate_up_stride = dgate_up.row_stride,
                               .dh_stride = dh.row_stride,
                               .m = w.m,
                               .columns = static_cast<int>(dh.cols()),
                               .restore = op.restore,
                               .gate = SigmoidGate(op.activation)};
  return product_launch<GatedBackward, false>(w, params, stream);
}

}  // namespace snug::cuda
