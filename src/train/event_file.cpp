#include "train/event_file.h"

#include <array>
#include <bit>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace snug {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; i++) {
    table[i] = i;
    for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78U : 0U);
  }
  return table;
}();

// As the framing has it, so that a checksum of bytes that hold checksums is none of theirs.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

template <class T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// ---- Protocol buffers -----------------------------------------------------------------------------------------------

enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_tag(std::string& out, unsigned field, Wire wire) { append_varint(out, field << 3 | wire); }

void append_bytes(std::string& out, unsigned field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event(int64_t step, unsigned field, std::string_view what) {
  std::string bytes;
  append_tag(bytes, 1, kFixed64);
  append_raw(bytes, now());
  append_tag(bytes, 2, kVarint);
  append_varint(bytes, static_cast<uint64_t>(step));
  append_bytes(bytes, field, what);
  return tfrecord(bytes);
}

// Summary: value = 1; Summary.Value: tag = 1, simple_value = 2.
void append_scalar(std::string& summary, std::string_view tag, double number) {
  std::string value;
  append_bytes(value, 1, tag);
  append_tag(value, 2, kFixed32);
  append_raw(value, static_cast<float>(number));
  append_bytes(summary, 1, value);
}

// SessionLog: status = 1, of which START is 1.
constexpr std::string_view kSessionStart = "\x08\x01";

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffU;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string tfrecord(std::string_view bytes) {
  std::string record;
  append_raw(record, static_cast<uint64_t>(bytes.size()));
  append_raw(record, masked(crc32c(record)));
  record += bytes;
  append_raw(record, masked(crc32c(bytes)));
  return record;
}

EventFile::EventFile(const std::filesystem::path& directory, int64_t first_step) {
  std::filesystem::create_directories(directory);
  first_ = std::filesystem::is_empty(directory);
  // Readers take the files of a directory in the order of their names.
  const auto nanoseconds = std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  const std::string name =
      fmt::format("events.out.tfevents.{}.{:09}", nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000);
  std::string begin = event(0, 3, "brain.Event:2");
  if (!first_) begin += event(first_step, 7, kSessionStart);
  file_.emplace(directory / name, begin);
}

void EventFile::append(int64_t step, const nlohmann::ordered_json& values) {
  std::string summary;
  for (const auto& [key, value] : values.items())
    if (key != "step" && value.is_number()) append_scalar(summary, key, value.get<double>());
  file_->append(event(step, 5, summary));
}

}  // namespace snug
