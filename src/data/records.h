// Data files cut into records, without looking at what a record means and without holding more than one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace snug {

// A record longer than this is refused: what looks like one is a file of another kind.
constexpr uint64_t kMaxRecordBytes = uint64_t{256} << 20;

struct Record {
  std::string text;   // one JSON object as it stands in the file, or the text of one document
  std::string place;  // for messages: "train.jsonl, line 12", "train.json, element 3 (line 40)"
  int64_t line = 1;   // of the file, where the text begins
};

// Reads a file from front to end. The name's ending says what it is:
//   .jsonl  one JSON object a line; empty lines are skipped
//   .json   an array of objects, or objects one after another (JSON lines under the other name)
//   .txt    documents, separated by lines that are empty or white space; a file without such lines is one document
// A UTF-8 byte order mark is skipped, and in .txt the carriage return of CR LF.
class RecordReader {
 public:
  // UserError for another ending, or a file that cannot be read. `max_record_bytes` is for tests.
  explicit RecordReader(std::filesystem::path path, uint64_t max_record_bytes = kMaxRecordBytes);

  // Whether records are JSON, as opposed to plain text.
  bool json() const { return kind_ != Kind::Text; }
  // False at the end of the file. UserError with file and line for an array that ends early, for what is no object, and
  // for a record that is too long.
  bool next(Record& record);

 private:
  enum class Kind { Lines, Elements, Text };

  bool next_line(Record& record);
  bool next_element(Record& record);
  bool next_document(Record& record);
  void read_object(Record& record);
  // Reads up to the end of the line, which is taken away; false at the end of the file.
  bool read_line(std::string& line);
  void skip_white_space();
  // UserError with the line where the text would grow beyond the limit.
  void append(std::string& text, std::string_view more, int64_t line) const;
  void append(std::string& text, int byte) const;
  // The next byte, or -1 at the end of the file; take() goes past it.
  int peek();
  void take();

  std::filesystem::path path_;
  std::string name_;  // for messages
  Kind kind_ = Kind::Lines;
  uint64_t max_record_bytes_;
  File file_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is unread in the buffer
  uint64_t offset_ = 0;         // of the file behind the buffer
  int64_t line_ = 1;            // of the next byte
  int64_t elements_ = 0;        // read so far
  bool in_array_ = false, finished_ = false;
};

}  // namespace snug
