// Reads short ranges of an image file, which lies in memory or on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace snug {

// Return the number of `count` bytes, at most eight, from `offset` on; they must be there.
inline uint64_t big_endian(std::span<const uint8_t> bytes, uint64_t offset, uint64_t count) {
  uint64_t value = 0;
  for (uint64_t i = 0; i < count; i++) value = value << 8 | bytes[offset + i];
  return value;
}
inline uint64_t little_endian(std::span<const uint8_t> bytes, uint64_t offset, uint64_t count) {
  uint64_t value = 0;
  for (uint64_t i = 0; i < count; i++) value |= static_cast<uint64_t>(bytes[offset + i]) << 8 * i;
  return value;
}

// Gives ranges of a file's bytes. Of a file on disk it holds a window of some KiB, so that headers are read without
// what lies between them. Neither the bytes nor the file are owned; they must outlive it. For one thread.
class ImageBytes {
 public:
  // `source` names the image in messages.
  ImageBytes(std::span<const std::byte> bytes, std::string_view source);
  ImageBytes(const File& file, std::string_view source);

  uint64_t size() const { return size_; }
  const std::string& source() const { return source_; }
  bool has(uint64_t offset, uint64_t count) const { return offset <= size_ && count <= size_ - offset; }

  // Returns a range, valid until the next call. Throws UserError if the file ends before; `what` names what was to be
  // read.
  std::span<const uint8_t> at(uint64_t offset, uint64_t count, std::string_view what);
  // Returns the range as far as the file reaches.
  std::span<const uint8_t> up_to(uint64_t offset, uint64_t count);
  // Throws UserError, which says that the file ends inside `what`.
  [[noreturn]] void cut_short(std::string_view what) const;

 private:
  std::string source_;
  uint64_t size_;
  std::span<const std::byte> bytes_;
  const File* file_ = nullptr;
  uint64_t window_begin_ = 0;
  std::vector<std::byte> window_;
};

}  // namespace snug
