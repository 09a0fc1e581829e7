#include <cmath>

#include "tensor/dtype.h"
#include "tensor/view.h"

namespace snug {
namespace {
constexpr std::array<std::string_view, 7> kNames{"fp32", "bf16", "fp16", "int32", "int16", "uint8", "int8"};
}

std::string_view name(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

std::optional<DType> dtype_from_name(std::string_view word) {
  for (size_t i = 0; i < kNames.size(); i++)
    if (kNames[i] == word) return static_cast<DType>(i);
  return std::nullopt;
}

Float16::Float16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or above
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal: a whole number of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    bits = static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
  } else {
    const uint32_t rebased = magnitude - (112u << 23);
    bits = static_cast<uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
  }
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

Shape::Shape(std::initializer_list<int64_t> sizes) : rank(static_cast<int>(sizes.size())) {
  check(sizes.size() <= dims.size(), "a shape has {} dimensions, at most {} are supported", sizes.size(), dims.size());
  size_t i = 0;
  for (const int64_t size : sizes) dims[i++] = size;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank; i++) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

}  // namespace snug
