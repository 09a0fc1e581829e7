// Reads the documents of a .txt file.
#include <utility>

#include "base/error.h"
#include "data/record_format.h"
#include "data/text_cursor.h"

namespace snug {
namespace {

class TextRecords : public RecordFormat {
 public:
  TextRecords(const std::filesystem::path& path, DataFileType type, RecordOptions options)
      : cursor_(path, type, options.heartbeat), options_(std::move(options)) {}

  bool next(Record& record) override {
    std::string line, blank_lines;
    int64_t number = cursor_.line();
    for (bool begun = false; cursor_.read_line(line, options_.max_record_bytes); number = cursor_.line()) {
      const bool blank = is_blank(line);
      if (options_.text_split != TextSplit::Document && blank) {
        if (begun) return true;
        continue;
      }
      if (!begun) {
        record.line = number;
        record.place = fmt::format("{}, line {}", cursor_.name(), number);
        begun = true;
      } else {
        blank_lines += '\n';
      }
      // Blank lines belong to a document only if something follows them.
      if (blank) {
        append(blank_lines, line, number);
        continue;
      }
      append(record.text, blank_lines, number);
      append(record.text, line, number);
      blank_lines.clear();
      if (options_.text_split == TextSplit::Line) return true;
    }
    return !record.text.empty();
  }

 private:
  void append(std::string& text, std::string_view more, int64_t line) const {
    append_within(text, more, options_.max_record_bytes, cursor_.name(), line);
  }

  TextCursor cursor_;
  RecordOptions options_;
};

}  // namespace

std::unique_ptr<RecordFormat> text_records(const std::filesystem::path& path, DataFileType type,
                                           RecordOptions options) {
  return std::make_unique<TextRecords>(path, type, std::move(options));
}

}  // namespace snug
