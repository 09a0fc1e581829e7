// Dequantises the blocks of GGUF's types, exactly as the gguf package and llama.cpp compute them: products and sums in
// fp32, each rounded by itself. `from` is one block of the type's size, `out` has room for its values. The comments
// list bytes in their order in the block; in "16 x 4 bits" the even ones of two are in the low half; d is an fp16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/load.h"
#include "tensor/dtype.h"

namespace snug {

inline float load_half(const std::byte* bytes) {
  Float16 half;
  half.bits = load<uint16_t>(bytes);
  return static_cast<float>(half);
}

// Returns unsigned byte i of a block.
inline uint32_t byte_at(const std::byte* bytes, size_t i) { return std::to_integer<uint32_t>(bytes[i]); }

using DequantizeBlock = void (*)(const std::byte* from, float* out);

// gguf_dequantize.cpp has these: blocks of 32 values, of 256 in K types and ternary ones, of 128 in Q1_0, 64 in Q2_0.
void dequantize_q1_0(const std::byte* from, float* out);
void dequantize_q2_0(const std::byte* from, float* out);
void dequantize_q4_0(const std::byte* from, float* out);
void dequantize_q4_1(const std::byte* from, float* out);
void dequantize_q5_0(const std::byte* from, float* out);
void dequantize_q5_1(const std::byte* from, float* out);
void dequantize_q8_0(const std::byte* from, float* out);
void dequantize_q2_k(const std::byte* from, float* out);
void dequantize_q3_k(const std::byte* from, float* out);
void dequantize_q4_k(const std::byte* from, float* out);
void dequantize_q5_k(const std::byte* from, float* out);
void dequantize_q6_k(const std::byte* from, float* out);
void dequantize_tq1_0(const std::byte* from, float* out);
void dequantize_tq2_0(const std::byte* from, float* out);

// gguf_dequantize_grids.cpp has these: numbers and points from tables.
void dequantize_iq1_s(const std::byte* from, float* out);
void dequantize_iq1_m(const std::byte* from, float* out);
void dequantize_iq2_xxs(const std::byte* from, float* out);
void dequantize_iq2_xs(const std::byte* from, float* out);
void dequantize_iq2_s(const std::byte* from, float* out);
void dequantize_iq3_xxs(const std::byte* from, float* out);
void dequantize_iq3_s(const std::byte* from, float* out);
void dequantize_iq4_nl(const std::byte* from, float* out);
void dequantize_iq4_xs(const std::byte* from, float* out);
void dequantize_mxfp4(const std::byte* from, float* out);
void dequantize_nvfp4(const std::byte* from, float* out);

// Holds the scales and minima of eight groups of Q4_K and Q5_K, six bits each, from their twelve bytes: 0 to 3 hold the
// lower four scales and, in their top bits, two bits of the upper four; 4 to 7 hold the minima in that way; 8 to 11 the
// upper four's low halves, scales in the low half of a byte.
struct GroupScales {
  uint32_t scale[8], minimum[8];
};
inline GroupScales unpack_group_scales(const std::byte* bytes) {
  GroupScales groups{};
  for (size_t i = 0; i < 4; ++i) {
    const uint32_t scale = byte_at(bytes, i), minimum = byte_at(bytes, 4 + i), low = byte_at(bytes, 8 + i);
    groups.scale[i] = scale & 63;
    groups.minimum[i] = minimum & 63;
    groups.scale[4 + i] = (low & 15) | (scale >> 6) << 4;
    groups.minimum[4 + i] = low >> 4 | (minimum >> 6) << 4;
  }
  return groups;
}

}  // namespace snug
