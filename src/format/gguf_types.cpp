#include <algorithm>
#include <array>

#include "base/error.h"
#include "format/gguf.h"
#include "format/gguf_blocks.h"

namespace snug {
namespace {

template <class T>
void widen(const std::byte* from, float* out) {
  *out = static_cast<float>(load<T>(from));
}
void widen_f16(const std::byte* from, float* out) { *out = load_half(from); }
void widen_bf16(const std::byte* from, float* out) {
  *out = static_cast<float>(BFloat16::from_bits(load<uint16_t>(from)));
}

struct TypeFacts {
  GgufType type;
  std::string_view name;
  uint64_t block_values, block_bytes;
  DequantizeBlock dequantize;
};

constexpr std::array<TypeFacts, 33> kTypes{{
    {GgufType::F32, "F32", 1, 4, widen<float>},
    {GgufType::F16, "F16", 1, 2, widen_f16},
    {GgufType::Q4_0, "Q4_0", 32, 18, dequantize_q4_0},
    {GgufType::Q4_1, "Q4_1", 32, 20, dequantize_q4_1},
    {GgufType::Q5_0, "Q5_0", 32, 22, dequantize_q5_0},
    {GgufType::Q5_1, "Q5_1", 32, 24, dequantize_q5_1},
    {GgufType::Q8_0, "Q8_0", 32, 34, dequantize_q8_0},
    {GgufType::Q2_K, "Q2_K", 256, 84, dequantize_q2_k},
    {GgufType::Q3_K, "Q3_K", 256, 110, dequantize_q3_k},
    {GgufType::Q4_K, "Q4_K", 256, 144, dequantize_q4_k},
    {GgufType::Q5_K, "Q5_K", 256, 176, dequantize_q5_k},
    {GgufType::Q6_K, "Q6_K", 256, 210, dequantize_q6_k},
    {GgufType::IQ2_XXS, "IQ2_XXS", 256, 66, dequantize_iq2_xxs},
    {GgufType::IQ2_XS, "IQ2_XS", 256, 74, dequantize_iq2_xs},
    {GgufType::IQ3_XXS, "IQ3_XXS", 256, 98, dequantize_iq3_xxs},
    {GgufType::IQ1_S, "IQ1_S", 256, 50, dequantize_iq1_s},
    {GgufType::IQ4_NL, "IQ4_NL", 32, 18, dequantize_iq4_nl},
    {GgufType::IQ3_S, "IQ3_S", 256, 110, dequantize_iq3_s},
    {GgufType::IQ2_S, "IQ2_S", 256, 82, dequantize_iq2_s},
    {GgufType::IQ4_XS, "IQ4_XS", 256, 136, dequantize_iq4_xs},
    {GgufType::I8, "I8", 1, 1, widen<int8_t>},
    {GgufType::I16, "I16", 1, 2, widen<int16_t>},
    {GgufType::I32, "I32", 1, 4, widen<int32_t>},
    {GgufType::I64, "I64", 1, 8, widen<int64_t>},
    {GgufType::F64, "F64", 1, 8, widen<double>},
    {GgufType::IQ1_M, "IQ1_M", 256, 56, dequantize_iq1_m},
    {GgufType::BF16, "BF16", 1, 2, widen_bf16},
    {GgufType::TQ1_0, "TQ1_0", 256, 54, dequantize_tq1_0},
    {GgufType::TQ2_0, "TQ2_0", 256, 66, dequantize_tq2_0},
    {GgufType::MXFP4, "MXFP4", 32, 17, dequantize_mxfp4},
    {GgufType::NVFP4, "NVFP4", 64, 36, dequantize_nvfp4},
    {GgufType::Q1_0, "Q1_0", 128, 18, dequantize_q1_0},
    {GgufType::Q2_0, "Q2_0", 64, 18, dequantize_q2_0},
}};

// Lists types that are not read: types of values within products, layouts for one processor, and withdrawn types.
struct OtherType {
  uint32_t number;
  std::string_view name;
};
constexpr std::array<OtherType, 10> kOtherTypes{{{4, "Q4_2"},
                                                 {5, "Q4_3"},
                                                 {9, "Q8_1"},
                                                 {15, "Q8_K"},
                                                 {31, "Q4_0_4_4"},
                                                 {32, "Q4_0_4_8"},
                                                 {33, "Q4_0_8_8"},
                                                 {36, "IQ4_NL_4_4"},
                                                 {37, "IQ4_NL_4_8"},
                                                 {38, "IQ4_NL_8_8"}}};

const TypeFacts& facts_of(GgufType type) {
  const auto found = std::ranges::find(kTypes, type, &TypeFacts::type);
  check(found != kTypes.end(), "GGUF type {} has no facts", static_cast<uint32_t>(type));
  return *found;
}

}  // namespace

std::optional<GgufType> gguf_type(uint32_t number) {
  const auto found = std::ranges::find(kTypes, static_cast<GgufType>(number), &TypeFacts::type);
  return found == kTypes.end() ? std::nullopt : std::optional(found->type);
}

std::string gguf_type_name(uint32_t number) {
  if (const auto known = gguf_type(number)) return std::string(name(*known));
  const auto other = std::ranges::find(kOtherTypes, number, &OtherType::number);
  return other == kOtherTypes.end() ? fmt::format("number {}", number) : std::string(other->name);
}

std::string gguf_type_names() {
  std::string names;
  for (const TypeFacts& facts : kTypes) names += fmt::format("{}{}", names.empty() ? "" : ", ", facts.name);
  return names;
}

std::string_view name(GgufType type) { return facts_of(type).name; }

uint64_t block_values(GgufType type) { return facts_of(type).block_values; }

uint64_t row_bytes(GgufType type, uint64_t values) {
  const TypeFacts& facts = facts_of(type);
  return values / facts.block_values * facts.block_bytes;
}

void dequantize(GgufType type, std::span<const std::byte> bytes, std::span<float> out) {
  const TypeFacts& facts = facts_of(type);
  check(out.size() % facts.block_values == 0 && bytes.size() == row_bytes(type, out.size()),
        "{} bytes of {} hold other than {} values", bytes.size(), facts.name, out.size());
  const std::byte* from = bytes.data();
  for (size_t i = 0; i < out.size(); i += facts.block_values, from += facts.block_bytes)
    facts.dequantize(from, out.data() + i);
}

}  // namespace snug
