// Reads rows of a .csv file (RFC 4180) as JSON objects.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/record_format.h"
#include "data/text_cursor.h"
#include "format/json_text.h"
#include "format/unicode.h"

namespace snug {
namespace {

class CsvRecords : public RecordFormat {
 public:
  CsvRecords(const std::filesystem::path& path, DataFileType type, RecordOptions options)
      : cursor_(path, type, options.heartbeat), options_(std::move(options)) {
    if (!read_row(header_)) user_error("{}: found nothing, expected a header row with the columns' names", name());
    check_header();
  }

  bool next(Record& record) override {
    std::vector<std::string> cells;
    if (!read_row(cells)) return false;
    record.line = row_line_;
    record.place = fmt::format("{}, line {}", name(), row_line_);
    if (cells.size() != header_.size()) {
      user_error("{}: found {} cells, expected {} as in the header row", record.place, cells.size(), header_.size());
    }
    for (size_t i = 0; i < cells.size(); ++i) {
      if (header_[i].empty()) continue;
      record.text += record.text.empty() ? '{' : ',';
      append_json_string(record.text, header_[i]);
      record.text += ':';
      refuse_bad_text(cells[i], i);
      if (cells[i].empty()) {
        record.text += "null";
      } else {
        append_json_text(record.text, cells[i], options_.json_columns.contains(header_[i]));
      }
    }
    record.text += '}';
    return true;
  }

 private:
  const std::string& name() const { return cursor_.name(); }

  void check_header() {
    for (const std::string& column : header_)
      if (column.find('\r') != std::string::npos && cursor_.peek() < 0)
        user_error(
            "{}, line {}: found lines that end in CR alone, expected LF or CR LF: write the file with one of these",
            name(), row_line_);
    if (header_.size() == 1) {
      for (const auto& [delimiter, said] : {std::pair(';', "';'"), std::pair('\t', "tabs")}) {
        if (header_[0].find(delimiter) == std::string::npos) continue;
        user_error("{}, line {}: found {} between the columns' names, expected commas; write the file with commas",
                   name(), row_line_, said);
      }
    }
    size_t nameless = 0;
    for (size_t i = 0; i < header_.size(); ++i) {
      refuse_bad_text(header_[i], i);
      if (header_[i].empty()) {
        ++nameless;
        continue;
      }
      const auto twice = std::find(header_.begin(), header_.begin() + static_cast<std::ptrdiff_t>(i), header_[i]);
      if (twice != header_.begin() + static_cast<std::ptrdiff_t>(i)) {
        user_error("{}, line {}: found column '{}' twice in the header row, expected it once", name(), row_line_,
                   header_[i]);
      }
    }
    if (nameless == header_.size()) {
      user_error("{}, line {}: found no name in the header row, expected the columns' names", name(), row_line_);
    }
    if (nameless > 0) note_ = fmt::format("{}: passed over: {} without a name", name(), columns(nameless));
  }

  static std::string columns(size_t count) { return count == 1 ? "a column" : fmt::format("{} columns", count); }

  void refuse_bad_text(const std::string& cell, size_t column) const {
    const auto bad = find_invalid_utf8(cell);
    if (!bad) return;
    user_error("{}, line {}, column {}: found byte {:#04x}, which is not UTF-8; write the file in UTF-8", name(),
               row_line_, column + 1, static_cast<unsigned char>(cell[*bad]));
  }

  // Reads the next row that is not an empty line; row_line_ is where it begins. Returns false at the end of the file.
  bool read_row(std::vector<std::string>& cells) {
    cells.clear();
    while (cursor_.peek() == '\n' || cursor_.peek() == '\r') cursor_.take();
    if (cursor_.peek() < 0) return false;
    row_line_ = cursor_.line();
    row_bytes_ = 0;
    do {
      count(sizeof(std::string));
      cells.emplace_back();
      if (cursor_.peek() == '"') {
        read_quoted(cells.back());
      } else {
        read_plain(cells.back());
      }
    } while (!ends_row());
    return true;
  }

  // Takes what is behind a cell; returns true at the end of the row.
  bool ends_row() {
    const int c = cursor_.peek();
    if (c >= 0) cursor_.take();
    return c != ',';
  }

  void read_plain(std::string& cell) {
    for (int c = cursor_.peek(); c >= 0 && c != ',' && c != '\n'; c = cursor_.peek()) {
      cursor_.take();
      if (c == '\r' && (cursor_.peek() == '\n' || cursor_.peek() < 0)) return;
      add(cell, c);
    }
  }

  void read_quoted(std::string& cell) {
    const int64_t begin = cursor_.line();
    cursor_.take();
    for (;;) {
      const int c = cursor_.peek();
      if (c < 0) user_error("{}, line {}: the file ends inside the quoted cell that begins here", name(), begin);
      cursor_.take();
      if (c == '\r' && cursor_.peek() == '\n') continue;
      if (c == '"') {
        if (cursor_.peek() != '"') break;
        cursor_.take();
      }
      add(cell, c);
    }
    if (cursor_.peek() == '\r') cursor_.take();
    const int c = cursor_.peek();
    if (c >= 0 && c != ',' && c != '\n') {
      user_error(
          "{}, line {}: found {} behind a quoted cell, expected a comma or the line's end; a quote within one is "
          "written twice",
          name(), cursor_.line(), shown_byte(c));
    }
  }

  void add(std::string& cell, int byte) {
    count(1);
    cell += static_cast<char>(byte);
  }

  // Counts the bytes of a row, with those of its cells.
  void count(uint64_t bytes) {
    row_bytes_ += bytes;
    if (row_bytes_ > options_.max_record_bytes) {
      user_error("{}, line {}: found a row of more than {} bytes; is a quote not closed?", name(), row_line_,
                 options_.max_record_bytes);
    }
  }

  TextCursor cursor_;
  RecordOptions options_;
  std::vector<std::string> header_;
  int64_t row_line_ = 1;
  uint64_t row_bytes_ = 0;
};

}  // namespace

std::unique_ptr<RecordFormat> csv_records(const std::filesystem::path& path, DataFileType type, RecordOptions options) {
  return std::make_unique<CsvRecords>(path, type, std::move(options));
}

}  // namespace snug
