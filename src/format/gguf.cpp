#include "format/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/rounding.h"
#include "format/load.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr uint64_t kWindowBytes = 1 << 20;  // read ahead while parsing
constexpr uint64_t kMaxKeyBytes = 1 << 16, kMaxPairs = 1 << 16, kMaxTensors = 1 << 20, kMaxArray = 1 << 22;
constexpr uint64_t kMaxDimensions = 4, kMaxAlignment = 1 << 20;

enum class ValueType : uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };

struct Describe {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& value) const { return fmt::format("\"{}\"", value.substr(0, 60)); }
  template <class T>
  std::string operator()(const std::vector<T>& list) const {
    return fmt::format("a list of {} values", list.size());
  }
};

}  // namespace

// Walks the header once, front to back, through a window of the file.
class GgufParser {
 public:
  GgufParser(const ReadAt& read, uint64_t file_bytes, std::string_view source) : read_(read), file_bytes_(file_bytes) {
    header_.source_ = source;
  }

  GgufHeader parse() {
    parse_start();
    for (uint64_t i = 0; i < pairs_; ++i) parse_pair();
    for (uint64_t i = 0; i < tensors_; ++i) header_.tensors_.push_back(parse_tensor());
    place_tensors();
    return std::move(header_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}, byte {}: {}", header_.source_, position_, fmt::format(format, std::forward<Args>(args)...));
  }

  // Returns the next bytes, at most a window of them; valid until the next call.
  std::span<const std::byte> take(uint64_t bytes) {
    if (bytes > file_bytes_ - position_) fail("the file ends {} bytes short", bytes - (file_bytes_ - position_));
    if (position_ < window_begin_ || position_ + bytes > window_begin_ + window_.size()) {
      window_begin_ = position_;
      window_.resize(std::max(bytes, std::min(kWindowBytes, file_bytes_ - position_)));
      read_(window_begin_, window_);
    }
    const auto taken = std::span(window_).subspan(position_ - window_begin_, bytes);
    position_ += bytes;
    return taken;
  }

  template <class T>
  T number() {
    return load<T>(take(sizeof(T)).data());
  }

  std::string string(uint64_t max_bytes) {
    const auto length = number<uint64_t>();
    if (length > max_bytes) fail("found a string of {} bytes, expected at most {}", length, max_bytes);
    const auto bytes = take(length);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (find_invalid_utf8(text)) fail("found a string that is not UTF-8");
    return text;
  }

  void parse_start() {
    const auto magic = number<uint32_t>();
    if (magic != 0x46554747) fail("expected a GGUF file, which starts with 'GGUF'");
    const auto version = number<uint32_t>();
    if (version == 0x02000000 || version == 0x03000000) fail("found a big-endian file, expected a little-endian one");
    if (version != 2 && version != 3) fail("found GGUF version {}, expected 2 or 3", version);
    tensors_ = number<uint64_t>();
    pairs_ = number<uint64_t>();
    if (tensors_ > kMaxTensors) fail("found {} tensors, expected at most {}", tensors_, kMaxTensors);
    if (pairs_ > kMaxPairs) fail("found {} pairs of metadata, expected at most {}", pairs_, kMaxPairs);
  }

  int64_t integer(ValueType type) {
    switch (type) {
      case ValueType::U8:
        return number<uint8_t>();
      case ValueType::I8:
        return number<int8_t>();
      case ValueType::U16:
        return number<uint16_t>();
      case ValueType::I16:
        return number<int16_t>();
      case ValueType::U32:
        return number<uint32_t>();
      case ValueType::I32:
        return number<int32_t>();
      case ValueType::Bool:
        return number<uint8_t>() != 0;
      case ValueType::I64:
        return number<int64_t>();
      case ValueType::U64:
        break;
      default:
        fail("found value type {}, expected one from 0 to 12", static_cast<uint32_t>(type));
    }
    const auto value = number<uint64_t>();
    if (value > INT64_MAX) fail("found the integer {}, expected at most {}", value, INT64_MAX);
    return static_cast<int64_t>(value);
  }

  GgufValue array() {
    const auto type = static_cast<ValueType>(number<uint32_t>());
    const auto count = number<uint64_t>();
    if (count > kMaxArray) fail("found a list of {} values, expected at most {}", count, kMaxArray);
    if (type == ValueType::Array) fail("found a list of lists, expected numbers or strings");
    if (type == ValueType::String) {
      std::vector<std::string> list;
      for (uint64_t i = 0; i < count; ++i) list.push_back(string(kWindowBytes));
      return list;
    }
    if (type == ValueType::F32 || type == ValueType::F64) {
      std::vector<double> list;
      for (uint64_t i = 0; i < count; ++i) list.push_back(type == ValueType::F32 ? number<float>() : number<double>());
      return list;
    }
    std::vector<int64_t> list;
    for (uint64_t i = 0; i < count; ++i) list.push_back(integer(type));
    return list;
  }

  void parse_pair() {
    const std::string key = string(kMaxKeyBytes);
    const auto type = static_cast<ValueType>(number<uint32_t>());
    GgufValue value;
    switch (type) {
      case ValueType::Bool:
        value = integer(type) != 0;
        break;
      case ValueType::F32:
        value = static_cast<double>(number<float>());
        break;
      case ValueType::F64:
        value = number<double>();
        break;
      case ValueType::String:
        value = string(kWindowBytes);
        break;
      case ValueType::Array:
        value = array();
        break;
      default:
        value = integer(type);
        break;
    }
    if (!header_.values_.emplace(key, std::move(value)).second) fail("found key '{}' twice, expected it once", key);
  }

  // Reads a tensor's entry. Its offset stays relative to the data until place_tensors().
  GgufTensor parse_tensor() {
    GgufTensor tensor;
    tensor.name = string(kMaxKeyBytes);
    const auto dimensions = number<uint32_t>();
    if (dimensions > kMaxDimensions) {
      fail("tensor '{}' has {} dimensions, expected at most {}", tensor.name, dimensions, kMaxDimensions);
    }
    uint64_t values = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
      const auto size = number<uint64_t>();
      if (size > INT64_MAX || __builtin_mul_overflow(values, size, &values) || values > INT64_MAX / 8) {
        fail("tensor '{}' has a size of {}, too large", tensor.name, size);
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    const auto type = number<uint32_t>();
    const auto known = gguf_type(type);
    if (!known)
      fail("tensor '{}' has type {}, expected one of {}", tensor.name, gguf_type_name(type), gguf_type_names());
    tensor.type = *known;
    const auto columns = static_cast<uint64_t>(tensor.shape.empty() ? 1 : tensor.shape.back());
    if (columns % block_values(*known) != 0) {
      fail("tensor '{}' of type {} has rows of {} values, expected a multiple of {}", tensor.name, name(*known),
           columns, block_values(*known));
    }
    tensor.bytes = row_bytes(*known, values);
    tensor.offset = number<uint64_t>();
    return tensor;
  }

  void place_tensors() {
    const auto alignment = static_cast<uint64_t>(header_.integer("general.alignment", 8, kMaxAlignment, 32));
    if (!std::has_single_bit(alignment)) header_.fail("general.alignment", "a power of two");
    const uint64_t data_begin = round_up(position_, alignment);
    for (GgufTensor& tensor : header_.tensors_) {
      const uint64_t room = file_bytes_ - std::min(data_begin, file_bytes_);
      if (tensor.offset % alignment != 0 || tensor.offset > room || tensor.bytes > room - tensor.offset) {
        user_error(
            "{}, tensor '{}': found {} bytes at offset {}, expected a multiple of {} within the file's {} bytes of "
            "data",
            header_.source_, tensor.name, tensor.bytes, tensor.offset, alignment, room);
      }
      tensor.offset += data_begin;
    }
    refuse_overlaps();
    std::ranges::sort(header_.tensors_, {}, &GgufTensor::name);
    const auto twin = std::ranges::adjacent_find(header_.tensors_, {}, &GgufTensor::name);
    if (twin != header_.tensors_.end()) {
      user_error("{}: found tensor '{}' twice, expected it once", header_.source_, twin->name);
    }
  }

  void refuse_overlaps() {
    std::ranges::sort(header_.tensors_, {}, [](const GgufTensor& t) { return std::pair(t.offset, t.bytes); });
    for (size_t i = 1; i < header_.tensors_.size(); ++i) {
      const GgufTensor &before = header_.tensors_[i - 1], &tensor = header_.tensors_[i];
      if (before.offset + before.bytes > tensor.offset) {
        user_error("{}: tensors '{}' and '{}' overlap at byte {}", header_.source_, before.name, tensor.name,
                   tensor.offset);
      }
    }
  }

  const ReadAt& read_;
  uint64_t file_bytes_, position_ = 0, tensors_ = 0, pairs_ = 0;
  std::vector<std::byte> window_;
  uint64_t window_begin_ = 0;
  GgufHeader header_;
};

const GgufTensor* GgufHeader::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &GgufTensor::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

std::vector<std::string_view> GgufHeader::keys() const {
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

void GgufHeader::fail(std::string_view key, std::string_view expected) const {
  const auto found = values_.find(key);
  user_error("{}, key '{}': found {}, expected {}", source_, key,
             found == values_.end() ? "nothing" : std::visit(Describe(), found->second), expected);
}

template <class T>
const T& GgufHeader::get(std::string_view key, std::string_view expected) const {
  const auto found = values_.find(key);
  if (found == values_.end() || !std::holds_alternative<T>(found->second)) fail(key, expected);
  return std::get<T>(found->second);
}

int64_t GgufHeader::integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const std::string expected = fmt::format("an integer from {} to {}", low, high);
  const auto value = get<int64_t>(key, expected);
  if (value < low || value > high) fail(key, expected);
  return value;
}

double GgufHeader::number(std::string_view key, std::optional<double> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const auto value = get<double>(key, "a floating-point number");
  if (!std::isfinite(value)) fail(key, "a finite number");
  return value;
}

bool GgufHeader::boolean(std::string_view key, std::optional<bool> fallback) const {
  if (!has(key) && fallback) return *fallback;
  return get<bool>(key, "true or false");
}

std::string GgufHeader::string(std::string_view key, std::optional<std::string> fallback) const {
  if (!has(key) && fallback) return *std::move(fallback);
  return get<std::string>(key, "a string");
}

const std::vector<std::string>& GgufHeader::strings(std::string_view key) const {
  return get<std::vector<std::string>>(key, "a list of strings");
}

const std::vector<double>& GgufHeader::numbers(std::string_view key) const {
  return get<std::vector<double>>(key, "a list of numbers");
}

bool GgufHeader::has_integers(std::string_view key) const {
  const auto found = values_.find(key);
  return found != values_.end() && std::holds_alternative<std::vector<int64_t>>(found->second);
}

const std::vector<int64_t>& GgufHeader::integers(std::string_view key) const {
  return get<std::vector<int64_t>>(key, "a list of integers");
}

GgufHeader parse_gguf(const ReadAt& read, uint64_t file_bytes, std::string_view source) {
  return GgufParser(read, file_bytes, source).parse();
}

}  // namespace snug
