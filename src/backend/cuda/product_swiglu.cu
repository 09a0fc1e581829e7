// Computes a linear and the SwiGLU after it, or before it in the backward.
#include "backend/cuda/fused.h"
#include "backend/cuda/product_tiles.cuh"
#include "backend/cuda/swiglu.cuh"
#include "program/swiglu_gemm.h"

namespace snug::cuda {
namespace {

// Takes tiles of 128 columns of gate and as many of up, so that a thread has both for a number of h.
struct Gated {
  static constexpr Thin kThin = Thin::OfHalves;
  struct Where {
    CUtensorMap gate_up, h;
    int columns;  // of h
    bool result;  // whether h is asked for
    SigmoidGate gate;
  };
  RoundedRows rows;

  template <class Until>
  __device__ void write(const Where& where, int row, int column, uint32_t slabs, const Until& until) {
    until(2);
    rows.write<0>(where.gate_up, row, column, slabs);
    until(3);
    rows.write<1>(where.gate_up, row, where.columns + column, slabs);
    if (!where.result) return;
    constexpr int kHalf = kSumColumns / 2, kAtOnce = 4;
#pragma unroll
    for (int first = 0; first < kHalf; first += kAtOnce) {
      until(4 + first / kAtOnce);
#pragma unroll
      for (int j = first; j < first + kAtOnce; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          uint32_t& gate = rows.pairs[j][half];
          const uint32_t up = rows.pairs[kHalf + j][half];
          gate = packed(swiglu(activated<BFloat16>(low_number(gate), where.gate), low_number(up)),
                        swiglu(activated<BFloat16>(high_number(gate), where.gate), high_number(up)));
        }
    }
    until(4 + kHalf / kAtOnce);
    rows.write<0>(where.h, row, column, slabs);
  }
  template <class Until>
  __device__ Nothing begin(const Where&, int, int, const Until&) const {
    return {};
  }
  __device__ void take(const Sum (&s)[kSumColumns], const Nothing&) { rows.round(s); }
};

// Takes tiles of dh; h is written in its place if it is to be restored. A thread has eight neighbours of a row, as it
// reads gate and up and writes their gradients.
struct GatedBackward {
  static constexpr Thin kThin = Thin::OfPart;
  struct Where {
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
        dh[j][half] = turned_pairs(pair(0), pair(1), pair(2), pair(3));
      }
  }

  template <class Until>
  __device__ void write(const Where& where, int row, int column, uint32_t, const Until& until) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row += lane / 4;
    column += lane % 4 * 8;
    const auto inside = [&](int i) { return row + 8 * (i % 2) < where.m && column + 32 * (i / 2) < where.columns; };
    uint4 gate{}, up{};
    const auto load = [&](int i) {
      if (!inside(i)) return;
      const BFloat16* const at = where.gate_up + (row + 8 * (i % 2)) * where.gate_up_stride + column + 32 * (i / 2);
      gate = load_once(at);
      up = load_once(at + where.columns);
    };
    // A step of two stages takes longer than what is loaded needs to come, and than the computation on it.
    load(0);
#pragma unroll
    for (int i = 0; i < 2 * kGroups; i++) {
      until(2 * (i + 1));
      const uint4 g = gate, u = up;
      if (i + 1 < 2 * kGroups) load(i + 1);
      if (inside(i)) finish(where, row + 8 * (i % 2), column + 32 * (i / 2), dh[i / 2][i % 2], g, u);
    }
  }
  template <class Until>
  __device__ Nothing begin(const Where&, int, int, const Until&) const {
    return {};
  }

 private:
  static __device__ void finish(const Where& where, int row, int column, const uint4& dh, const uint4& gate,
                                const uint4& up) {
    const uint32_t d[] = {dh.x, dh.y, dh.z, dh.w}, g[] = {gate.x, gate.y, gate.z, gate.w},
                   u[] = {up.x, up.y, up.z, up.w};
    Pack<uint32_t, 4> dgate, dup, h;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const Activated low_gate = activated<BFloat16>(low_number(g[i]), where.gate),
                      high_gate = activated<BFloat16>(high_number(g[i]), where.gate);
      const SwiGluGradient low = swiglu_gradient(low_number(d[i]), low_gate, low_number(u[i])),
                           high = swiglu_gradient(high_number(d[i]), high_gate, high_number(u[i]));
      dgate[i] = packed(low.dgate, high.dgate);
      dup[i] = packed(low.dup, high.dup);
      h[i] = where.restore ? packed(low.h, high.h) : d[i];
    }
    BFloat16* const at = where.dgate_up + row * where.dgate_up_stride + column;
    save<4>(reinterpret_cast<uint32_t*>(at), dgate);
    save<4>(reinterpret_cast<uint32_t*>(at + where.columns), dup);
    save<4>(reinterpret_cast<uint32_t*>(where.dh + row * where.dh_stride + column), h);
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
    add_thin(w, views[3], true, views[2].cols());
  }
  const Gated::Where where{map_of(gate_up, 16), map_of(op.result ? views[factors + 1] : gate_up, 16), columns,
                           op.result, SigmoidGate(op.activation)};
  return product_launch<Gated, true>(w, where, stream);
}

MaybeLaunch bind_kernel(const SwiGluGemmBackward& op, std::span<const TensorView> views, cudaStream_t stream) {
  const size_t factors = factor_count(op);
  const TensorView &gate_up = views[factors], &dgate_up = views[factors + 1], &dh = views[factors + 2];
  if (!takes(op, views)) return std::nullopt;
  Factors w = factors_of(views[0], views[1], false, dh.cols());
  if (factors > 2) {
    w.u = tensor_map(numbers(views[2]), {views[2].cols(), 1, views[2].rows()}, {views[2].cols(), stride_of(views[2])},
                     {kPanel, 1, kTileM});
    w.ends[0] = w.ends[1] = static_cast<int>(dh.cols());
    add_thin(w, views[3], false, views[2].cols());
  }
  GatedBackward::Where where{.gate_up = numbers(gate_up),
                             .dgate_up = numbers(dgate_up),
                             .dh = numbers(dh),
                             .gate_up_stride = gate_up.row_stride,
                             .dgate_up_stride = dgate_up.row_stride,
                             .dh_stride = dh.row_stride,
                             .m = w.m,
                             .columns = static_cast<int>(dh.cols()),
                             .restore = op.restore,
                             .gate = SigmoidGate(op.activation)};
  return product_launch<GatedBackward, false>(w, where, stream);
}

}  // namespace snug::cuda
