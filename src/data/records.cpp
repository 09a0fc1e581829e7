#include "data/records.h"

#include <utility>

#include "base/error.h"

namespace snug {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

bool is_white(int c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r\f\v") == std::string::npos; }

// A byte for a message.
std::string shown(int c) {
  if (c < 0) return "the end of the file";
  return c > ' ' && c < 127 ? fmt::format("'{}'", static_cast<char>(c)) : fmt::format("byte {:#04x}", c);
}

}  // namespace

RecordReader::RecordReader(std::filesystem::path path, uint64_t max_record_bytes)
    : path_(std::move(path)), name_(path_.string()), max_record_bytes_(max_record_bytes) {
  file_ = File::open_read(path_, IoMode::Buffered);
  const std::string ending = path_.extension().string();
  if (ending == ".jsonl") {
    kind_ = Kind::Lines;
  } else if (ending == ".json") {
    kind_ = Kind::Elements;
  } else if (ending == ".txt") {
    kind_ = Kind::Text;
  } else {
    user_error("{}: found another ending, expected a file that ends in .json, .jsonl or .txt", name_);
  }
  buffer_.resize(kBufferBytes);
  peek();
  const auto at = [&](size_t i) { return i < end_ ? static_cast<unsigned char>(buffer_[i]) : 0; };
  if (at(0) == 0xef && at(1) == 0xbb && at(2) == 0xbf) begin_ = 3;
}

bool RecordReader::next(Record& record) {
  record.text.clear();
  switch (kind_) {
    case Kind::Lines:
      return next_line(record);
    case Kind::Elements:
      return next_element(record);
    case Kind::Text:
      return next_document(record);
  }
  return false;
}

bool RecordReader::next_line(Record& record) {
  do {
    record.line = line_;
    record.place = fmt::format("{}, line {}", name_, line_);
    if (!read_line(record.text)) return false;
  } while (is_blank(record.text));
  return true;
}

bool RecordReader::next_document(Record& record) {
  std::string line;
  while (read_line(line)) {
    if (is_blank(line)) {
      if (record.text.empty()) continue;
      return true;
    }
    if (line.ends_with('\r')) line.pop_back();
    if (record.text.empty()) {
      record.line = line_ - 1;
      record.place = fmt::format("{}, line {}", name_, record.line);
    } else {
      append(record.text, "\n", line_ - 1);
    }
    append(record.text, line, line_ - 1);
  }
  return !record.text.empty();
}

bool RecordReader::next_element(Record& record) {
  skip_white_space();
  if (elements_ == 0 && !in_array_ && peek() == '[') {
    in_array_ = true;
    take();
    skip_white_space();
  } else if (in_array_ && !finished_ && peek() == ',') {
    take();
    skip_white_space();
    if (peek() != '{') user_error("{}, line {}: found {} after ',', expected an object", name_, line_, shown(peek()));
  } else if (in_array_ && !finished_ && peek() != ']') {
    user_error("{}, line {}: found {} after element {}, expected ',' or ']'", name_, line_, shown(peek()), elements_);
  }
  if (in_array_ && !finished_ && peek() == ']') {
    finished_ = true;
    take();
    skip_white_space();
  }
  if (peek() < 0 && (finished_ || !in_array_)) return false;
  if (peek() != '{' || finished_) {
    user_error("{}, line {}: found {}, expected {}", name_, line_, shown(peek()),
               finished_ ? "nothing after the array" : "an object: the file holds an array of objects, one a sample");
  }
  read_object(record);
  return true;
}

// From a brace to the one that closes it; what lies between is for the JSON parser to judge.
void RecordReader::read_object(Record& record) {
  record.line = line_;
  record.place = fmt::format("{}, element {} (line {})", name_, ++elements_, line_);
  int64_t depth = 0;
  bool in_string = false;
  do {
    const int c = peek();
    if (c < 0) user_error("{}: the file ends inside it", record.place);
    take();
    append(record.text, c);
    if (in_string && c == '\\' && peek() >= 0) {
      append(record.text, peek());
      take();
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '{' || c == '[')) {
      ++depth;
    } else if (!in_string && (c == '}' || c == ']')) {
      --depth;
    }
  } while (depth > 0);
}

bool RecordReader::read_line(std::string& line) {
  line.clear();
  if (peek() < 0) return false;
  for (int c = peek(); c != '\n'; c = peek()) {
    if (c < 0) {
      ++line_;
      return true;
    }
    take();
    append(line, c);
  }
  take();
  return true;
}

void RecordReader::skip_white_space() {
  while (is_white(peek())) take();
}

void RecordReader::append(std::string& text, int byte) const {
  const char c = static_cast<char>(byte);
  append(text, {&c, 1}, line_);
}

void RecordReader::append(std::string& text, std::string_view more, int64_t line) const {
  if (text.size() + more.size() > max_record_bytes_) {
    user_error(
        "{}, line {}: found a sample of more than {} bytes; expected one object a line in .jsonl, an array of objects "
        "in .json, blank lines between documents in .txt",
        name_, line, max_record_bytes_);
  }
  text += more;
}

int RecordReader::peek() {
  if (begin_ == end_) {
    begin_ = 0;
    end_ = file_.read_to_end(offset_, buffer_);
    offset_ += end_;
    if (end_ == 0) return -1;
  }
  return static_cast<unsigned char>(buffer_[begin_]);
}

void RecordReader::take() {
  if (buffer_[begin_++] == std::byte{'\n'}) ++line_;
}

}  // namespace snug
