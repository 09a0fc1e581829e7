#include "data/text_cursor.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "base/option_name.h"

namespace snug {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

TextCursor::TextCursor(const std::filesystem::path& path, DataFileType type, Heartbeat heartbeat)
    : name_(path.string()), heartbeat_(std::move(heartbeat)), buffer_(kBufferBytes) {
  const bool compressed = type.compression != Compression::None;
  if (compressed) {
    // A file that only has the ending is refused by what it is, not as a damaged stream.
    const auto raw = ByteSource::open(path, Compression::None);
    end_ = raw->read(buffer_);
    refuse_foreign_bytes(std::span(buffer_).first(end_), name_, type, /*inner=*/false);
    end_ = 0;
  }
  source_ = ByteSource::open(path, type.compression);
  refill();
  refuse_foreign_bytes(std::span(buffer_).first(end_), name_, type, compressed);
  if (std::string_view(reinterpret_cast<const char*>(buffer_.data()), end_).starts_with(kByteOrderMark)) {
    offset_ = begin_ = kByteOrderMark.size();
  }
}

bool TextCursor::read_line(std::string& line, uint64_t max_bytes) {
  line.clear();
  if (peek() < 0) return false;
  while (peek() >= 0) {
    const auto from = buffer_.begin() + static_cast<std::ptrdiff_t>(begin_);
    const auto to = buffer_.begin() + static_cast<std::ptrdiff_t>(end_);
    const auto found = std::find(from, to, std::byte{'\n'});
    const auto count = static_cast<size_t>(found - from);
    append_within(line, {reinterpret_cast<const char*>(buffer_.data()) + begin_, count}, max_bytes, name_, line_);
    begin_ += count;
    offset_ += count;
    if (found == to) continue;
    take();
    if (line.ends_with('\r')) line.pop_back();
    return true;
  }
  if (line.ends_with('\r')) line.pop_back();
  ++line_;
  return true;
}

void TextCursor::skip_white_space() {
  for (int c = peek(); c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == 0xef; c = peek()) {
    if (c == 0xef) {
      for (const char mark : kByteOrderMark) {
        if (peek() != static_cast<unsigned char>(mark)) {
          user_error("{}, line {}: found {}, expected JSON", name_, line_, shown_byte(peek()));
        }
        take();
      }
      continue;
    }
    take();
  }
}

void TextCursor::refill() {
  call(heartbeat_);
  begin_ = 0;
  end_ = source_->read(buffer_);
}

std::string shown_byte(int byte) {
  if (byte < 0) return "the end of the file";
  return byte > ' ' && byte < 127 ? fmt::format("'{}'", static_cast<char>(byte)) : fmt::format("byte {:#04x}", byte);
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\f\v") == std::string_view::npos; }

void append_within(std::string& text, std::string_view more, uint64_t max_bytes, const std::string& name,
                   int64_t line) {
  if (text.size() + more.size() > max_bytes) {
    user_error(
        "{}, line {}: found a sample of more than {} bytes; expected one object a line in .jsonl, an array of objects "
        "in .json, and documents within that size in .txt, or {} paragraph or line",
        name, line, max_bytes, option_name("text_split"));
  }
  // While it grows it is in memory twice, and so is what is read from it.
  constexpr uint64_t kSmall = 8 << 20;
  if (const uint64_t bytes = text.size() + more.size(); bytes > text.capacity() && bytes > kSmall)
    if (const uint64_t left = free_memory(); left < 4 * bytes)
      throw CapacityError(fmt::format(
          "{}, line {}: found a sample of more than {} MiB, and {} MiB of memory are left; expected shorter samples",
          name, line, bytes >> 20, left >> 20));
  text += more;
}

}  // namespace snug
