// Defines element types and their conversions on the host.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace snug {

enum class DType : uint8_t { F32, BF16, F16, I32, I16, U8, I8 };

constexpr uint64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
    case DType::F16:
    case DType::I16:
      return 2;
    case DType::U8:
    case DType::I8:
      return 1;
  }
  return 0;
}

// Returns the name in options, dumps and messages: "fp32", "bf16", "fp16", "int32", "int16", "uint8", "int8".
std::string_view name(DType dtype);

// Returns the inverse of name(); nothing for an unknown word.
std::optional<DType> dtype_from_name(std::string_view word);

// Holds the upper half of an IEEE-754 binary32.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) : bits(round(value)) {}
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static BFloat16 from_bits(uint16_t bits) {
    BFloat16 x;
    x.bits = bits;
    return x;
  }

 private:
  // Rounds to nearest, ties to even; NaN stays NaN (quiet).
  static uint16_t round(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

// Holds an IEEE-754 binary16: a storage format of weight files, never computed in.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);  // to nearest, ties to even; overflow to infinity
  explicit operator float() const;
};

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::F32;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::BF16;
}
template <>
constexpr DType dtype_of<Float16>() {
  return DType::F16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::I32;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::I16;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::U8;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::I8;
}

}  // namespace snug
