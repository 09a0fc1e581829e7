#include "base/error.h"
#include "format/gguf.h"
#include "format/load.h"
#include "tensor/dtype.h"

namespace snug {
namespace {

constexpr uint64_t kBlockValues = 32;

float load_half(const std::byte* bytes) {
  Float16 half;
  half.bits = load<uint16_t>(bytes);
  return static_cast<float>(half);
}

}  // namespace

std::string_view name(GgufType type) {
  switch (type) {
    case GgufType::F32:
      return "F32";
    case GgufType::F16:
      return "F16";
    case GgufType::BF16:
      return "BF16";
    case GgufType::Q4_1:
      return "Q4_1";
    case GgufType::Q8_0:
      return "Q8_0";
  }
  internal_error("GGUF type {} has no name", static_cast<uint32_t>(type));
}

uint64_t block_values(GgufType type) { return type == GgufType::Q4_1 || type == GgufType::Q8_0 ? kBlockValues : 1; }

uint64_t row_bytes(GgufType type, uint64_t values) {
  switch (type) {
    case GgufType::F32:
      return values * 4;
    case GgufType::F16:
    case GgufType::BF16:
      return values * 2;
    case GgufType::Q4_1:
      return values / kBlockValues * 20;
    case GgufType::Q8_0:
      return values / kBlockValues * 34;
  }
  internal_error("GGUF type {} has no size", static_cast<uint32_t>(type));
}

void dequantize(GgufType type, std::span<const std::byte> bytes, std::span<float> out) {
  check(bytes.size() == row_bytes(type, out.size()), "{} bytes of {} hold other than {} values", bytes.size(),
        name(type), out.size());
  const std::byte* from = bytes.data();
  switch (type) {
    case GgufType::F32:
      for (size_t i = 0; i < out.size(); ++i) out[i] = load<float>(from + 4 * i);
      return;
    case GgufType::F16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = load_half(from + 2 * i);
      return;
    case GgufType::BF16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(BFloat16::from_bits(load<uint16_t>(from + 2 * i)));
      }
      return;
    case GgufType::Q8_0:
      for (size_t block = 0; block < out.size(); block += kBlockValues, from += 34) {
        const float scale = load_half(from);
        for (size_t i = 0; i < kBlockValues; ++i) {
          out[block + i] = scale * static_cast<float>(load<int8_t>(from + 2 + i));
        }
      }
      return;
    case GgufType::Q4_1:
      for (size_t block = 0; block < out.size(); block += kBlockValues, from += 20) {
        const float scale = load_half(from), minimum = load_half(from + 2);
        for (size_t i = 0; i < kBlockValues / 2; ++i) {
          const auto pair = std::to_integer<uint32_t>(from[4 + i]);
          out[block + i] = scale * static_cast<float>(pair & 15) + minimum;
          out[block + kBlockValues / 2 + i] = scale * static_cast<float>(pair >> 4) + minimum;
        }
      }
      return;
  }
}

}  // namespace snug
