#include "format/gguf_blocks.h"

namespace snug {
namespace {

float number(uint32_t code) { return static_cast<float>(code); }
float signed_number(uint32_t code, int32_t middle) { return static_cast<float>(static_cast<int32_t>(code) - middle); }

// Returns value i of 32 that lie as 16 bytes: the low halves first, then the high ones.
uint32_t half_byte(const std::byte* bytes, size_t i) { return byte_at(bytes, i % 16) >> (i / 16 * 4) & 15; }

}  // namespace

// d | 16 bytes, of value i bit i % 8 at i / 8: x = d where it is set, else -d
void dequantize_q1_0(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t i = 0; i < 128; ++i) out[i] = (byte_at(from + 2, i / 8) >> (i % 8) & 1) ? scale : -scale;
}

// d | 16 bytes, of value i bits 2 (i % 4) at i / 4: x = d (q - 1)
void dequantize_q2_0(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t i = 0; i < 64; ++i) out[i] = scale * signed_number(byte_at(from + 2, i / 4) >> (i % 4 * 2) & 3, 1);
}

// d | 16 bytes: x = d (q - 8)
void dequantize_q4_0(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t i = 0; i < 32; ++i) out[i] = scale * signed_number(half_byte(from + 2, i), 8);
}

// d | m | 16 bytes: x = d q + m
void dequantize_q4_1(const std::byte* from, float* out) {
  const float scale = load_half(from), minimum = load_half(from + 2);
  for (size_t i = 0; i < 32; ++i) out[i] = scale * number(half_byte(from + 4, i)) + minimum;
}

// d | fifth bits of 32 values | 16 bytes: x = d (q - 16)
void dequantize_q5_0(const std::byte* from, float* out) {
  const float scale = load_half(from);
  const auto fifth = load<uint32_t>(from + 2);
  for (size_t i = 0; i < 32; ++i) out[i] = scale * signed_number(half_byte(from + 6, i) | (fifth >> i & 1) << 4, 16);
}

// d | m | fifth bits | 16 bytes: x = d q + m
void dequantize_q5_1(const std::byte* from, float* out) {
  const float scale = load_half(from), minimum = load_half(from + 2);
  const auto fifth = load<uint32_t>(from + 4);
  for (size_t i = 0; i < 32; ++i) out[i] = scale * number(half_byte(from + 8, i) | (fifth >> i & 1) << 4) + minimum;
}

// d | 32 signed bytes: x = d q
void dequantize_q8_0(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(load<int8_t>(from + 2 + i));
}

// 16 bytes, a scale and a minimum of 4 bits for each 16 values | 64 bytes, 2 bits each: value i of 128 lies in byte i %
// 32, bits 2 (i / 32) | d | m: x = d s q - m t
void dequantize_q2_k(const std::byte* from, float* out) {
  const float scale = load_half(from + 80), minimum = load_half(from + 82);
  for (size_t i = 0; i < 256; ++i) {
    const uint32_t group = byte_at(from, i / 16);
    const uint32_t code = byte_at(from + 16, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    out[i] = scale * number(group & 15) * number(code) - minimum * number(group >> 4);
  }
}

// 32 bytes, whose bit i / 32 at i % 32 is 0 if 4 is subtracted from value i | 64 bytes as in Q2_K | 12 bytes, 16 scales
// of 6 bits: four in 8 bytes, the first eight in the low halves, two more in the 4 bytes behind, four in each | d
void dequantize_q3_k(const std::byte* from, float* out) {
  const float scale = load_half(from + 108);
  const std::byte* scales = from + 96;
  float group[16];
  for (size_t g = 0; g < 16; ++g) {
    const uint32_t low = byte_at(scales, g % 8) >> (g / 8 * 4) & 15,
                   high = byte_at(scales + 8, g % 4) >> (g / 4 * 2) & 3;
    group[g] = scale * signed_number(low | high << 4, 32);
  }
  for (size_t i = 0; i < 256; ++i) {
    const uint32_t code = byte_at(from + 32, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const uint32_t third = byte_at(from, i % 32) >> (i / 32) & 1;
    out[i] = group[i / 16] * signed_number(code, third ? 0 : 4);
  }
}

// d | m | 12 bytes, scales and minima of 32 values each | 128 bytes, 32 for 64 values, the first 32 in the low halves:
// x = d s q - m t
void dequantize_q4_k(const std::byte* from, float* out) {
  const float scale = load_half(from), minimum = load_half(from + 2);
  const GroupScales groups = unpack_group_scales(from + 4);
  for (size_t g = 0; g < 8; ++g) {
    const float group = scale * number(groups.scale[g]), lowest = minimum * number(groups.minimum[g]);
    for (size_t i = 0; i < 32; ++i)
      out[g * 32 + i] = group * number(byte_at(from + 16, g / 2 * 32 + i) >> (g % 2 * 4) & 15) - lowest;
  }
}

// As Q4_K with 32 bytes of fifth bits before the 128: of value i bit i / 32 at i % 32.
void dequantize_q5_k(const std::byte* from, float* out) {
  const float scale = load_half(from), minimum = load_half(from + 2);
  const GroupScales groups = unpack_group_scales(from + 4);
  for (size_t g = 0; g < 8; ++g) {
    const float group = scale * number(groups.scale[g]), lowest = minimum * number(groups.minimum[g]);
    for (size_t i = 0; i < 32; ++i) {
      const uint32_t low = byte_at(from + 48, g / 2 * 32 + i) >> (g % 2 * 4) & 15;
      out[g * 32 + i] = group * number(low | (byte_at(from + 16, i) >> g & 1) << 4) - lowest;
    }
  }
}

// 128 bytes, 64 for 128 values, the first 64 in the low halves | 64 bytes, two more bits: 32 for 128 values, of value i
// bits 2 (i / 32) at i % 32 | 16 signed bytes, the scales of 16 values each | d: x = d s (q - 32)
void dequantize_q6_k(const std::byte* from, float* out) {
  const float scale = load_half(from + 208);
  for (size_t i = 0; i < 256; ++i) {
    const size_t half = i / 128, in_half = i % 128;
    const uint32_t low = byte_at(from, half * 64 + in_half % 64) >> (in_half / 64 * 4) & 15;
    const uint32_t high = byte_at(from + 128, half * 32 + in_half % 32) >> (in_half / 32 * 2) & 3;
    const float group = scale * static_cast<float>(load<int8_t>(from + 192 + i / 16));
    out[i] = group * signed_number(low | high << 4, 32);
  }
}

// Five digits to the base 3 a byte, as the fraction q / 256: times 3, the digit is what exceeds 256. 32 bytes hold
// value i of 160 at i % 32, digit i / 32; 16 bytes hold 80 values in this way, 4 bytes hold 16 values in four digits |
// d: x = d (q - 1)
void dequantize_tq1_0(const std::byte* from, float* out) {
  const float scale = load_half(from + 52);
  constexpr uint32_t kPowers[5]{1, 3, 9, 27, 81};
  const auto digits = [&](size_t begin, size_t bytes, size_t values) {
    for (size_t i = 0; i < values; ++i) {
      const uint32_t fraction = byte_at(from, begin + i % bytes) * kPowers[i / bytes] & 255;
      *out++ = scale * signed_number(fraction * 3 >> 8, 1);
    }
  };
  digits(0, 32, 160);
  digits(32, 16, 80);
  digits(48, 4, 16);
}

// 64 bytes as in Q2_K | d: x = d (q - 1)
void dequantize_tq2_0(const std::byte* from, float* out) {
  const float scale = load_half(from + 64);
  for (size_t i = 0; i < 256; ++i)
    out[i] = scale * signed_number(byte_at(from, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3, 1);
}

}  // namespace snug
