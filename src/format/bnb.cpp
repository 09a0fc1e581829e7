#include "format/bnb.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/rounding.h"
#include "format/json.h"
#include "format/load.h"
#include "tensor/codebook.h"

namespace snug {
namespace {

constexpr int64_t kBlock = 64, kScaleBlock = 256;
constexpr int64_t kMaxSize = int64_t{1} << 31;
constexpr uint64_t kMaxStateBytes = 4096;

std::string place(const SafetensorsIndex& index, const SafetensorsEntry& entry) {
  return fmt::format("{}, tensor '{}'", index.files()[entry.file].string(), entry.name);
}

const SafetensorsEntry& require(const SafetensorsIndex& index, const SafetensorsEntry& weight, std::string_view name) {
  const SafetensorsEntry* entry = index.find(name);
  if (!entry) user_error("{}: found {}, but '{}' is missing", place(index, weight), weight.dtype_name, name);
  return *entry;
}

void check_form(const SafetensorsIndex& index, const SafetensorsEntry& entry, std::string_view dtype,
                const std::vector<int64_t>& shape, std::string_view reason) {
  if (entry.dtype_name == dtype && entry.shape == shape) return;
  user_error("{}: found {} [{}], expected {} [{}] ({})", place(index, entry), entry.dtype_name,
             fmt::join(entry.shape, ", "), dtype, fmt::join(shape, ", "), reason);
}

// Returns the bytes of a small tensor, whose size the caller has checked.
std::string read_bytes(const SafetensorsIndex& index, const SafetensorsEntry& entry) {
  std::string bytes(entry.bytes, '\0');
  File::open_read(index.files()[entry.file], IoMode::Buffered)
      .read(entry.offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Checks that the codebook in the file is snug's; machines may differ in a number's last bit.
template <size_t N>
void check_codebook(const SafetensorsIndex& index, const SafetensorsEntry& weight, const std::string& name,
                    const std::array<float, N>& expected) {
  const SafetensorsEntry& entry = require(index, weight, name);
  check_form(index, entry, "F32", {static_cast<int64_t>(N)}, "a codebook");
  const std::string bytes = read_bytes(index, entry);
  for (size_t i = 0; i < N; i++) {
    const auto found = load<float>(std::as_bytes(std::span(bytes)).data() + i * sizeof(float));
    if (!(std::abs(found - expected[i]) <= 0x1p-20f * std::abs(expected[i])))
      user_error("{}, element {}: found {}, expected {}, as in bitsandbytes' own codebook", place(index, entry), i,
                 found, expected[i]);
  }
}

// Returns "x." for the weight "x.weight".
std::string linear_of(std::string_view weight) {
  return std::string(weight.substr(0, weight.size() - std::string_view("weight").size()));
}

StoredWeight find_int8(const SafetensorsIndex& index, const SafetensorsEntry& weight, const Shape& shape,
                       std::string_view reason) {
  check_form(index, weight, "I8", {shape[0], shape[1]}, reason);
  const std::string linear = linear_of(weight.name);
  const SafetensorsEntry& scales = require(index, weight, linear + "SCB");
  check_form(index, scales, "F32", {shape[0]}, "one scale a row");
  if (const SafetensorsEntry* format = index.find(linear + "weight_format")) {
    check_form(index, *format, "U8", {}, "0: codes in row order");
    if (const std::string value = read_bytes(index, *format); value[0] != 0)
      user_error("{}: found {}, expected 0: codes in row order", place(index, *format), static_cast<uint8_t>(value[0]));
  }
  return {.storage = WeightStorage::Int8, .weight = &weight, .scales = &scales};
}

StoredWeight find_nf4(const SafetensorsIndex& index, const SafetensorsEntry& weight, const Shape& shape,
                      std::string_view reason) {
  const std::string& name = weight.name;
  if (index.find(name + ".quant_state.bitsandbytes__fp4"))
    user_error("{}: found bitsandbytes' fp4, expected nf4", place(index, weight));
  const SafetensorsEntry& state_entry = require(index, weight, name + ".quant_state.bitsandbytes__nf4");
  if (state_entry.dtype_name != "U8" || state_entry.bytes > kMaxStateBytes)
    user_error("{}: found {} bytes of {}, expected at most {} of U8", place(index, state_entry), state_entry.bytes,
               state_entry.dtype_name, kMaxStateBytes);
  const Nf4State state = parse_nf4_state(read_bytes(index, state_entry), place(index, state_entry));
  if (state.rows != shape[0] || state.cols != shape[1])
    user_error("{}: found shape [{}, {}], expected {} ({})", place(index, state_entry), state.rows, state.cols,
               to_string(shape), reason);
  const int64_t count = shape.count(), blocks = count / kBlock;
  check_form(index, weight, "U8", {count / 2, 1}, "two codes a byte");
  check_codebook(index, weight, name + ".quant_map", kNf4Codebook);
  StoredWeight stored{.storage = WeightStorage::Nf4, .weight = &weight, .offset = state.offset};
  stored.scales = &require(index, weight, name + ".absmax");
  check_form(index, *stored.scales, state.nested ? "U8" : "F32", {blocks}, "one scale for 64 elements");
  if (!state.nested) return stored;
  check_codebook(index, weight, name + ".nested_quant_map", kSignedMap);
  stored.block_scales = &require(index, weight, name + ".nested_absmax");
  check_form(index, *stored.block_scales, "F32", {ceil_div(blocks, kScaleBlock)}, "one for 256 scales");
  return stored;
}

}  // namespace

bool quantises(const BnbQuantization& quantization, std::string_view linear) {
  return std::ranges::none_of(quantization.left_out, [&](std::string_view name) {
    if (name.ends_with(".*")) name.remove_suffix(2);
    return linear.starts_with(name) || linear.ends_with(name);
  });
}

std::vector<std::string> companions(WeightStorage storage, std::string_view name) {
  std::vector<std::string> names;
  if (storage == WeightStorage::Int8)
    for (const std::string_view tail : {"SCB", "weight_format"})
      names.push_back(fmt::format("{}{}", linear_of(name), tail));
  if (storage == WeightStorage::Nf4)
    for (const std::string_view tail :
         {"absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state.bitsandbytes__nf4"})
      names.push_back(fmt::format("{}.{}", name, tail));
  return names;
}

Nf4State parse_nf4_state(std::string_view json, std::string_view source) {
  const Json parsed = parse_json(json, source);
  const JsonObject object(parsed, std::string(source));
  Nf4State state;
  if (object.string("quant_type") != "nf4") object.fail("quant_type", "\"nf4\"");
  object.integer("blocksize", kBlock, kBlock);
  object.string("dtype");
  const Json& shape = object.at("shape");
  const auto is_size = [](const Json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() > 0 && size.get<uint64_t>() <= uint64_t{kMaxSize};
  };
  if (!shape.is_array() || shape.size() != 2 || !is_size(shape[0]) || !is_size(shape[1]))
    object.fail("shape", fmt::format("two sizes from 1 to {}", kMaxSize));
  state.rows = shape[0].get<int64_t>();
  state.cols = shape[1].get<int64_t>();
  if (state.rows * state.cols % kBlock != 0)
    object.fail("shape", fmt::format("a number of elements that is a multiple of {}", kBlock));
  state.nested = object.has("nested_blocksize");
  if (!state.nested) return state;
  object.integer("nested_blocksize", kScaleBlock, kScaleBlock);
  if (object.string("nested_dtype") != "float32") object.fail("nested_dtype", "\"float32\"");
  // The offset is the mean of magnitudes.
  state.offset = static_cast<float>(object.number("nested_offset", 0, static_cast<double>(3.4e38f)));
  return state;
}

StoredWeight find_stored_weight(const SafetensorsIndex& index, std::string_view name, const Shape& shape,
                                std::string_view reason) {
  check(shape.rank == 2 && name.ends_with("weight"), "'{}' {} is no linear's weight", name, to_string(shape));
  const SafetensorsEntry* entry = index.find(name);
  if (entry && entry->dtype_name == "I8") return find_int8(index, *entry, shape, reason);
  if (entry && entry->dtype_name == "U8") return find_nf4(index, *entry, shape, reason);
  return {.weight = &index.require(name, shape, reason)};
}

}  // namespace snug
