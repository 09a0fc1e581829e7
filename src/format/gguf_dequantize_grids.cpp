#include <bit>

#include "format/gguf_blocks.h"
#include "format/gguf_grids.h"

namespace snug {
namespace {

// Returns eight signs from seven bits: the eighth makes the number of minus signs even.
uint32_t signs_of(uint32_t seven) { return seven | (static_cast<uint32_t>(std::popcount(seven)) & 1) << 7; }

float with_sign(float value, bool minus) { return minus ? -value : value; }

// Writes eight values: a scale times a point, with a sign of each.
template <size_t n>
void write_point(float scale, uint32_t point, const std::array<int8_t, n>& numbers, uint32_t signs, float* out) {
  for (size_t i = 0; i < 8; ++i)
    out[i] = with_sign(scale * static_cast<float>(numbers[point >> (2 * i) & 3]), signs >> i & 1);
}

// Writes four values; an index of 4 bits takes three of them.
void write_half_point(float scale, uint32_t point, const std::array<int8_t, 8>& numbers, uint32_t signs, float* out) {
  for (size_t i = 0; i < 4; ++i)
    out[i] = with_sign(scale * static_cast<float>(numbers[point >> (4 * i) & 7]), signs >> i & 1);
}

// Writes eight values: a scale times a point of -1, 0 and 1, moved by an eighth.
void write_moved_point(float scale, uint32_t point, bool down, float* out) {
  const float offset = down ? -0.125f : 0.125f;
  for (size_t i = 0; i < 8; ++i) out[i] = scale * (static_cast<float>(kGridIq1SNumbers[point >> (2 * i) & 3]) + offset);
}

// Returns 4 bits, of which the even ones in a row are in the low halves.
uint32_t four_bits(const std::byte* bytes, size_t i) { return byte_at(bytes, i / 2) >> (i % 2 * 4) & 15; }

// Writes 32 values whose codes lie as 16 bytes, the low halves first.
void write_numbers(float scale, const std::byte* codes, const std::array<int8_t, 16>& numbers, size_t bytes,
                   float* out) {
  for (size_t i = 0; i < 2 * bytes; ++i)
    out[i] = scale * static_cast<float>(numbers[byte_at(codes, i % bytes) >> (i / bytes * 4) & 15]);
}

}  // namespace

// d | 32 bytes, the low 8 bits of points | 8 x 16 bits for 32 values each: four times 3 more bits, 3 bits of scale, and
// whether values lie an eighth below: x = d (2 s + 1) (p +- 1/8)
void dequantize_iq1_s(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t g = 0; g < 8; ++g) {
    const uint32_t bits = load<uint16_t>(from + 34 + 2 * g);
    const float group = scale * static_cast<float>(2 * (bits >> 12 & 7) + 1);
    for (size_t p = 0; p < 4; ++p) {
      const uint32_t point = byte_at(from + 2, 4 * g + p) | (bits >> (3 * p) & 7) << 8;
      write_moved_point(group, kGridIq1S[point], bits >> 15, out + 32 * g + 8 * p);
    }
  }
}

// 32 bytes, the low 8 bits of points | 16 bytes, 3 more bits for two points each and whether they lie an eighth below |
// 4 x 16 bits, four scales of 3 bits for 16 values each, and in their top bits d
void dequantize_iq1_m(const std::byte* from, float* out) {
  uint32_t scales[4];
  Float16 whole;
  for (size_t i = 0; i < 4; ++i) {
    scales[i] = load<uint16_t>(from + 48 + 2 * i);
    whole.bits = static_cast<uint16_t>(whole.bits | scales[i] >> 12 << (4 * i));
  }
  const auto scale = static_cast<float>(whole);
  for (size_t p = 0; p < 32; ++p) {
    const uint32_t high = four_bits(from + 32, p);
    const size_t group = p / 2;
    const float factor = scale * static_cast<float>(2 * (scales[group / 4] >> (group % 4 * 3) & 7) + 1);
    write_moved_point(factor, kGridIq1S[byte_at(from, p) | (high & 7) << 8], high & 8, out + 8 * p);
  }
}

// d | 8 x (four points of 8 bits, 32 bits: four times 7 signs, 4 bits of scale): x = d (1/2 + s) / 4 p
void dequantize_iq2_xxs(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t g = 0; g < 8; ++g) {
    const std::byte* points = from + 2 + 8 * g;
    const auto bits = load<uint32_t>(points + 4);
    const float group = scale * (0.5f + static_cast<float>(bits >> 28)) * 0.25f;
    for (size_t p = 0; p < 4; ++p)
      write_point(group, kGridIq2Xxs[byte_at(points, p)], kGridIq2XxsNumbers, signs_of(bits >> (7 * p) & 127),
                  out + 32 * g + 8 * p);
  }
}

// d | 32 x 16 bits: a point of 9 bits, 7 signs | 16 scales of 4 bits, of 16 values each
void dequantize_iq2_xs(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t p = 0; p < 32; ++p) {
    const uint32_t bits = load<uint16_t>(from + 2 + 2 * p);
    const float group = scale * (0.5f + static_cast<float>(four_bits(from + 66, p / 2))) * 0.25f;
    write_point(group, kGridIq2Xs[bits & 511], kGridIq2XsNumbers, signs_of(bits >> 9), out + 8 * p);
  }
}

// d | 32 bytes, the low 8 bits of points | 32 bytes of signs | 8 bytes, two more bits of four points each | 16 scales
void dequantize_iq2_s(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t p = 0; p < 32; ++p) {
    const uint32_t point = byte_at(from + 2, p) | (byte_at(from + 66, p / 4) >> (p % 4 * 2) & 3) << 8;
    const float group = scale * (0.5f + static_cast<float>(four_bits(from + 74, p / 2))) * 0.25f;
    write_point(group, kGridIq2S[point], kGridIq2SNumbers, byte_at(from + 34, p), out + 8 * p);
  }
}

// d | 64 points of 4 values, 8 bits each | 8 x 32 bits: four times 7 signs, 4 bits of scale: x = d (1/2 + s) / 2 p
void dequantize_iq3_xxs(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t g = 0; g < 8; ++g) {
    const auto bits = load<uint32_t>(from + 66 + 4 * g);
    const float group = scale * (0.5f + static_cast<float>(bits >> 28)) * 0.5f;
    for (size_t p = 0; p < 8; ++p)
      write_half_point(group, kGridIq3Xxs[byte_at(from + 2, 8 * g + p)], kGridIq3XxsNumbers,
                       signs_of(bits >> (p / 2 * 7) & 127) >> (p % 2 * 4), out + 32 * g + 4 * p);
  }
}

// d | 64 bytes, the low 8 bits of points of 4 values | 8 bytes, their ninth bits | 32 bytes of signs | 8 scales of 4
// bits, of 32 values each: x = d (1 + 2 s) p
void dequantize_iq3_s(const std::byte* from, float* out) {
  const float scale = load_half(from);
  for (size_t p = 0; p < 64; ++p) {
    const uint32_t point = byte_at(from + 2, p) | (byte_at(from + 66, p / 8) >> (p % 8) & 1) << 8;
    const float group = scale * static_cast<float>(1 + 2 * four_bits(from + 106, p / 8));
    write_half_point(group, kGridIq3S[point], kGridIq3SNumbers, byte_at(from + 74, p / 2) >> (p % 2 * 4), out + 4 * p);
  }
}

// d | 16 bytes: x = d number(q)
void dequantize_iq4_nl(const std::byte* from, float* out) {
  write_numbers(load_half(from), from + 2, kNumbersIq4Nl, 16, out);
}

// d | 16 bits, the upper 2 bits of 8 scales | 4 bytes, their lower 4 | 8 x 16 bytes: x = d (s - 32) number(q)
void dequantize_iq4_xs(const std::byte* from, float* out) {
  const float scale = load_half(from);
  const uint32_t high = load<uint16_t>(from + 2);
  for (size_t g = 0; g < 8; ++g) {
    const uint32_t bits = four_bits(from + 4, g) | (high >> (2 * g) & 3) << 4;
    const float group = scale * static_cast<float>(static_cast<int32_t>(bits) - 32);
    write_numbers(group, from + 8 + 16 * g, kNumbersIq4Nl, 16, out + 32 * g);
  }
}

// An exponent (e8m0) | 16 bytes of fp4: x = 2^(e - 127) number(q), the numbers being twice what they stand for
void dequantize_mxfp4(const std::byte* from, float* out) {
  const uint32_t exponent = byte_at(from, 0);
  const float half = std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  write_numbers(half, from + 1, kNumbersFp4, 16, out);
}

// Four scales in fp8 (e4m3, without the sign) | 4 x 8 bytes of fp4, 16 values each
void dequantize_nvfp4(const std::byte* from, float* out) {
  for (size_t g = 0; g < 4; ++g) {
    const uint32_t bits = byte_at(from, g), exponent = bits >> 3 & 15;
    const auto fraction = static_cast<float>(bits & 7);
    float scale = fraction * 0x1p-9f;
    if (exponent > 0) scale = (1 + fraction / 8) * std::bit_cast<float>((exponent + 120) << 23);
    if (bits == 0x7f) scale = 0;
    write_numbers(scale * 0.5f, from + 4 + 8 * g, kNumbersFp4, 8, out + 16 * g);
  }
}

}  // namespace snug
