#include "format/gguf_writer.h"

#include "base/error.h"
#include "base/rounding.h"

namespace snug {
namespace {

constexpr uint64_t kAlignment = 32;
constexpr uint32_t kVersion = 3;
enum ValueType : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_text(std::string& out, std::string_view text) {
  append<uint64_t>(out, text.size());
  out += text;
}

uint64_t aligned(uint64_t bytes) { return round_up(bytes, kAlignment); }

}  // namespace

void GgufWriter::add_key(std::string_view key, uint32_t type) {
  append_text(pairs_, key);
  append(pairs_, type);
  ++pair_count_;
}

void GgufWriter::add(std::string_view key, std::string_view value) {
  add_key(key, kString);
  append_text(pairs_, value);
}

void GgufWriter::add_u32(std::string_view key, uint64_t value) {
  check(value <= UINT32_MAX, "{} is {}, too large for 32 bits", key, value);
  add_key(key, kU32);
  append(pairs_, static_cast<uint32_t>(value));
}

void GgufWriter::add_f32(std::string_view key, double value) {
  add_key(key, kF32);
  append(pairs_, static_cast<float>(value));
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  add_key(key, kBool);
  append<uint8_t>(pairs_, value);
}

void GgufWriter::add(std::string_view key, std::span<const std::string> values) {
  add_key(key, kArray);
  append<uint32_t>(pairs_, kString);
  append<uint64_t>(pairs_, values.size());
  for (const std::string& value : values) append_text(pairs_, value);
}

void GgufWriter::add(std::string_view key, std::span<const int32_t> values) {
  add_key(key, kArray);
  append<uint32_t>(pairs_, kI32);
  append<uint64_t>(pairs_, values.size());
  for (const int32_t value : values) append(pairs_, value);
}

void GgufWriter::add(std::string_view key, std::span<const float> values) {
  add_key(key, kArray);
  append<uint32_t>(pairs_, kF32);
  append<uint64_t>(pairs_, values.size());
  for (const float value : values) append(pairs_, value);
}

void GgufWriter::add_tensor(std::string_view name, const Shape& shape, GgufType type) {
  append_text(tensors_, name);
  append(tensors_, static_cast<uint32_t>(shape.rank));
  for (int i = shape.rank - 1; i >= 0; --i) append(tensors_, static_cast<uint64_t>(shape[i]));
  append(tensors_, static_cast<uint32_t>(type));
  append(tensors_, data_bytes_);
  offsets_.push_back(data_bytes_);
  data_bytes_ += aligned(row_bytes(type, static_cast<uint64_t>(shape.count())));
}

GgufLayout GgufWriter::layout() const {
  GgufLayout layout;
  layout.header = "GGUF";
  append(layout.header, kVersion);
  append<uint64_t>(layout.header, offsets_.size());
  append(layout.header, pair_count_);
  layout.header += pairs_ + tensors_;
  layout.header.resize(aligned(layout.header.size()));
  for (const uint64_t offset : offsets_) layout.offset.push_back(layout.header.size() + offset);
  layout.file_bytes = layout.header.size() + data_bytes_;
  return layout;
}

}  // namespace snug
