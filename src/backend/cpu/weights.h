// Gives the weights of a tensor that an optimizer updates.
#pragma once

#include "backend/master.h"

namespace snug::cpu {

// Gives a tensor's weights as fp32, and stores them with the random bits of an element.
struct PlainWeight {
  static constexpr bool kRandom = false;
  float* w;
  float load(int64_t i) const { return w[i]; }
  void store(int64_t i, float x, uint32_t) const { w[i] = x; }
};

struct SplitWeight {
  static constexpr bool kRandom = false;
  BFloat16* hi;
  int16_t* lo;
  float load(int64_t i) const { return join(hi[i], lo[i]); }
  void store(int64_t i, float x, uint32_t) const { split(x, hi[i], lo[i]); }
};

}  // namespace snug::cpu
