// Splits the master weight: an fp32 number becomes its nearest bf16 (ties away from zero) and the 16 bits that complete
// it.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace snug {

// split() and join() give x again exactly, except NaN, which becomes quiet.
constexpr void split(float x, BFloat16& hi, int16_t& lo) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool special = (bits & 0x7f800000u) == 0x7f800000u;  // infinity or NaN: nothing to complete
  const uint32_t quiet = (bits & 0x007fffffu) != 0 ? 0x40u : 0u;
  hi.bits = static_cast<uint16_t>(special ? (bits >> 16) | quiet : (bits + 0x8000u) >> 16);
  lo = static_cast<int16_t>(special ? 0u : bits & 0xffffu);
}

constexpr float join(const BFloat16& hi, int16_t lo) {
  return std::bit_cast<float>((uint32_t{hi.bits} << 16) + static_cast<uint32_t>(int32_t{lo}));
}

}  // namespace snug
