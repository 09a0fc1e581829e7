// Products of tiles that lie in a thread's own caches: what attention and thin products are made of.
//
// Factors are laid out as the processor's dot instructions want them. A: row-major. B: its rows in groups of
// kGroup<T>, the elements of a group side by side, so that element (k, n) of a B of `width` columns stands at
// (k / kGroup) * kGroup * width + n * kGroup + k % kGroup. Sums are fp32, in one order for one shape.
#pragma once

#include <cstdint>

#include "base/rounding.h"
#include "tensor/dtype.h"

namespace snug::cpu {

template <class T>
inline constexpr int64_t kGroup = 4 / static_cast<int64_t>(sizeof(T));

// Rows, columns and the dimension summed over are multiples of this: whoever packs a tile fills up with zeros.
inline constexpr int64_t kTileStep = 32;
constexpr int64_t round_up_to_step(int64_t size) { return round_up(size, kTileStep); }

// Has to be alive on the thread that calls tile_product(): it readies the processor's matrix unit where there is one.
// Not across calls of another library's products.
class TileUnit {
 public:
  TileUnit();
  ~TileUnit();
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;
};

// c [m, n] = (accumulate ? c : 0) + a [m, k] b [k, n], for T float or BFloat16. Strides are elements between rows (of
// B: its width).
template <class T>
void tile_product(const T* a, int64_t a_stride, const T* b, int64_t b_width, float* c, int64_t c_stride, int64_t m,
                  int64_t n, int64_t k, bool accumulate);

// What tile_product() of bf16 runs on: "amx_bf16", "avx512_bf16" or "plain".
const char* tile_unit_name();

}  // namespace snug::cpu
