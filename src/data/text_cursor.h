// Reads a data file's text, byte by byte and line by line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/heartbeat.h"
#include "data/byte_source.h"

namespace snug {

// Stands at a place in a text; a UTF-8 byte order mark at its start is skipped.
class TextCursor {
 public:
  // Throws UserError for a file that cannot be read, or whose first bytes are not text (refuse_foreign_bytes()).
  // `heartbeat` is called for each MiB that is read.
  TextCursor(const std::filesystem::path& path, DataFileType type, Heartbeat heartbeat);

  const std::string& name() const { return name_; }  // for messages
  int64_t line() const { return line_; }             // of the next byte, from 1
  uint64_t offset() const { return offset_; }        // of the next byte, after decompression

  // Returns the next byte, or -1 at the end; take() goes past it.
  int peek() {
    if (begin_ == end_) refill();
    return begin_ == end_ ? -1 : static_cast<unsigned char>(buffer_[begin_]);
  }
  void take() {
    if (buffer_[begin_++] == std::byte{'\n'}) ++line_;
    ++offset_;
  }
  // Reads up to the line's end, LF or CR LF, which is taken but not returned; returns false at the end of the file.
  // Throws UserError if the line has more than `max_bytes`.
  bool read_line(std::string& line, uint64_t max_bytes);
  // Takes white space, and byte order marks at places where files were joined.
  void skip_white_space();

 private:
  void refill();

  std::string name_;
  Heartbeat heartbeat_;
  std::unique_ptr<ByteSource> source_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // of the unread bytes in the buffer
  int64_t line_ = 1;
  uint64_t offset_ = 0;
};

// Returns a byte for a message: "'x'", "byte 0x07", "the end of the file" for -1.
std::string shown_byte(int byte);
bool is_blank(std::string_view line);
// Appends, or throws UserError that names file and line if `text` would have more than `max_bytes`.
void append_within(std::string& text, std::string_view more, uint64_t max_bytes, const std::string& name, int64_t line);

}  // namespace snug
