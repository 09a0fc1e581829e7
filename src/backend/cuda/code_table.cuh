// Codes of the dynamic maps of 8 bits, by one look-up each.
#pragma once

#include "backend/cuda/device.cuh"
#include "tensor/codebook.h"

namespace snug::cuda {

// A map's numbers, and an entry for each bin: the numbers that agree in sign, exponent and the upper 7 bits of the
// fraction, as between two of those lies at most one of the map's bounds. An entry and the bits of a magnitude in its
// bin make the code of the bin's number nearest to 0 above 16 bits that, beyond the bound, carry into it; of a negative
// bin all codes are complements, so that they rise with the magnitude as well. Bins of negative numbers lie before
// those of positive ones, one bit of the index apart.
template <bool kNegatives>
struct alignas(16) CodeTable {
  static constexpr int kFirst = (127 - 24) << 7, kBins = (24 << 7) + 1;  // all up to 2^-24 together; then up to 1
  static constexpr int kSign = 0x1000, kPositive = kNegatives ? kSign : 0;
  static_assert(kBins <= kSign && (kFirst & kSign) == kSign && ((kFirst + kBins) & kSign) == kSign);
  float values[256];
  uint32_t entries[kPositive + kBins];

  CodeTable() = default;
  constexpr explicit CodeTable(const DynamicMap& map) : values{}, entries{} {
    for (size_t i = 0; i < 256; i++) values[i] = map.values[i];
    const auto upper = [](float x) { return (std::bit_cast<uint32_t>(x) & 0x7fffffffu) >> 16; };
    const auto lower = [](float x) { return std::bit_cast<uint32_t>(x) & 0xffffu; };
    size_t code = 0;
    const auto in_bin = [&](size_t bound, uint32_t bin) { return bound < 255 && upper(map.bounds[bound]) == bin; };
    while (map.bounds[code] < 0.0f) code++;
    const size_t of_zero = code;
    for (size_t i = 0; i < kBins; i++) {
      const uint32_t bin = static_cast<uint32_t>(i) + kFirst;
      const float least = i == 0 ? 0.0f : std::bit_cast<float>(bin << 16);
      while (code < 255 && least > map.bounds[code]) code++;
      if (in_bin(code + 1, bin)) throw "two bounds in a bin";
      entries[kPositive + i] = static_cast<uint32_t>(code << 16) +
                               (in_bin(code, bin) ? 0xffffu - lower(map.bounds[code]) : 0u) - (bin << 16);
    }
    code = of_zero;
    for (size_t i = 0; kNegatives && i < kBins; i++) {
      const uint32_t bin = static_cast<uint32_t>(i) + kFirst;
      const float least = i == 0 ? 0.0f : -std::bit_cast<float>(bin << 16);
      while (code > 0 && least <= map.bounds[code - 1]) code--;
      if (code >= 2 && in_bin(code - 2, bin)) throw "two bounds in a bin";
      const bool bound = code > 0 && in_bin(code - 1, bin);
      entries[i] = static_cast<uint32_t>((255 - code) << 16) + (bound ? 0x10000u - lower(map.bounds[code - 1]) : 0u) -
                   (bin << 16);
    }
  }

  // By all threads of a block, before a barrier.
  __device__ void copy_from(const CodeTable& other) {
    for (unsigned i = threadIdx.x; i < sizeof(CodeTable) / sizeof(uint4); i += blockDim.x)
      reinterpret_cast<uint4*>(this)[i] = reinterpret_cast<const uint4*>(&other)[i];
  }
  // DynamicMap::nearest for x in [-1, 1], in the third byte.
  __device__ uint32_t nearest(float x) const {
    const uint32_t magnitude = __float_as_uint(fmaxf(fabsf(x), 0x1p-24f));
    const auto sign = static_cast<uint32_t>(__float_as_int(x) >> 31);
    if (!kNegatives) return entries[(magnitude >> 16) - kFirst] + magnitude;
    return (entries[((magnitude >> 16) ^ (sign & kSign)) - (kFirst - kSign)] + magnitude) ^ sign;
  }
};

}  // namespace snug::cuda
