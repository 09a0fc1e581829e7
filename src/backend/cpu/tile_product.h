// Computes products of tiles that lie in a thread's own caches, of which attention and low-rank products are made.
//
// Factors are laid out for the processor's dot instructions. A is row-major. B has its rows in groups of kGroup<T>, the
// elements of a group side by side, so that element (k, n) of a B of `width` columns stands at (k / kGroup) * kGroup *
// width + n * kGroup + k % kGroup. Sums are fp32, in one order for one shape.
#pragma once

#include <cstdint>

#include "base/rounding.h"
#include "tensor/dtype.h"

namespace snug::cpu {

template <class T>
inline constexpr int64_t kGroup = 4 / static_cast<int64_t>(sizeof(T));

// Rows, columns and the summed dimension are multiples of this: the code that packs a tile pads it with zeros.
inline constexpr int64_t kTileStep = 32;
constexpr int64_t round_up_to_step(int64_t size) { return round_up(size, kTileStep); }

// Readies the processor's matrix unit, if there is one. It must be alive on the thread that calls tile_product(), and
// not across calls of another library's products.
class TileUnit {
 public:
  TileUnit();
  ~TileUnit();
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;
};

// Computes c [m, n] = (accumulate ? c : 0) + a [m, k] b [k, n], for T float or BFloat16. Strides are elements between
// rows (of B: its width).
template <class T>
void tile_product(const T* a, int64_t a_stride, const T* b, int64_t b_width, float* c, int64_t c_stride, int64_t m,
                  int64_t n, int64_t k, bool accumulate);

// Returns whether the processor has AVX-512's instructions for bf16: code may be compiled for others besides.
inline bool has_avx512_bf16() { return __builtin_cpu_supports("avx512bf16"); }

// Returns the unit on which tile_product() of bf16 runs: "amx_bf16", "avx512_bf16" or "plain".
const char* tile_unit_name();

}  // namespace snug::cpu
