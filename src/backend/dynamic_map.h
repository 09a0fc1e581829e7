// The dynamic maps of 8-bit block-wise quantisation (Dettmers et al., arXiv:2110.02861): 256 numbers in [-1, 1] or
// [0, 1], closer together towards 0, in bitsandbytes' own bits (create_dynamic_map).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace snug {

struct DynamicMap {
  std::array<float, 256> values;  // of each code, ascending
  std::array<float, 255> bounds;  // the largest numbers that codes 0 to 254 are nearest to; halfway is still theirs

  // The code nearest to x; 0 for NaN. No branch: loops vectorise.
  uint8_t nearest(float x) const {
    uint32_t code = 0;
    for (int bit = 7; bit >= 0; bit--) {
      const uint32_t step = 1u << bit;
      code += x > bounds[code + step - 1] ? step : 0u;
    }
    return static_cast<uint8_t>(code);
  }
};

// Seven decades, the lowest from 1e-7 to 1e-6, each cut into twice as many equal intervals as the one below; values are
// the intervals' middles, 0 and 1. The intervals' ends are rounded once, as a fused multiply-add does.
constexpr DynamicMap make_dynamic_map(bool with_negatives) {
  constexpr float kDecade[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  DynamicMap map{};
  size_t next = 0;
  map.values[next++] = 0;
  map.values[next++] = 1;
  int intervals = with_negatives ? 1 : 2;
  for (const float decade : kDecade) {
    const float width = (1.0f - 0.1f) / static_cast<float>(intervals);
    const auto end = [&](int i) {  // from the nearer side
      const double from_low = static_cast<double>(0.1f) + static_cast<double>(width) * i;
      const double from_high = 1.0 - static_cast<double>(width) * (intervals - i);
      return static_cast<float>(i < (intervals + 1) / 2 ? from_low : from_high);
    };
    for (int i = 0; i < intervals; i++) {
      const float middle = decade * ((end(i) + end(i + 1)) / 2.0f);
      map.values[next++] = middle;
      if (with_negatives) map.values[next++] = -middle;
    }
    intervals *= 2;
  }
  std::ranges::sort(map.values);
  for (size_t i = 0; i < map.bounds.size(); i++) {
    const double halfway = (static_cast<double>(map.values[i]) + static_cast<double>(map.values[i + 1])) / 2;
    const auto nearest = static_cast<float>(halfway);
    const auto below = std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) + (nearest < 0 ? 1u : ~0u));
    map.bounds[i] = static_cast<double>(nearest) > halfway ? below : nearest;
  }
  return map;
}

inline constexpr DynamicMap kSignedMap = make_dynamic_map(true), kUnsignedMap = make_dynamic_map(false);

}  // namespace snug
