// Cuts data files into records, without looking at what a record means and without holding more than one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/heartbeat.h"
#include "format/json.h"

namespace snug {

// A longer record is refused, as such a file is of another kind.
constexpr uint64_t kMaxRecordBytes = uint64_t{256} << 20;

// Says what is one document of a .txt file.
enum class TextSplit { Document, Paragraph, Line };

// Returns the value of "document", "paragraph" or "line"; throws UserError for another name.
TextSplit text_split_from_name(std::string_view name);

struct Record {
  std::string text;                     // one JSON object, or the text of one document
  std::string place;                    // for messages: "train.jsonl, line 12", "train.json, element 3 (line 40)"
  int64_t line = 1;                     // of the file, where the text begins
  std::optional<uint64_t> offset = {};  // of the text in the file, where it stands there as it is
};

struct RecordOptions {
  TextSplit text_split = TextSplit::Document;
  // Names columns of tables whose cells are lists or objects; cells that are text are read as JSON.
  std::set<std::string, std::less<>> json_columns;
  // Returns whether an object is a sample by its keys, as opposed to one that holds the samples in a list. Its lists
  // and objects are given without their contents. Empty: every object is one.
  std::function<bool(const Json&)> is_sample;
  uint64_t max_record_bytes = kMaxRecordBytes;
  Heartbeat heartbeat{};  // called for each MiB that is read
};

// Reads a file from front to end. The name's ending says what it is (data/data_files.h), and whether it is compressed:
//   .jsonl, .json  objects, one a line or over several; or an array of objects; in .json also one object that is no
//                  sample and has one list of objects, which are the records then
//   .csv           RFC 4180 with a header row: an object a row, cells as strings, an empty cell as null
//   .parquet       an object a row
//   .txt           documents: the file, or its paragraphs (between lines that are empty or white space), or its lines
//                  (without empty ones); without the line ends behind them
// A UTF-8 byte order mark is skipped, and in .txt and .csv CR LF is LF.
class RecordFormat;
class RecordReader {
 public:
  // Throws UserError for another ending, a file that cannot be read, or one that is something else than its name says.
  explicit RecordReader(const std::filesystem::path& path, RecordOptions options = {});
  ~RecordReader();

  // Returns whether records are JSON, as opposed to plain text.
  bool json() const { return json_; }
  // Reads the next record; returns false at the end of the file. Throws UserError with file and line (row, element) for
  // what is no object, for a file that ends early or is damaged, and for a record that is too long.
  bool next(Record& record);
  // Returns what was settled by looking at the file, or left out of it; empty if there is nothing to report. It is
  // complete after the first next().
  const std::string& note() const;

 private:
  bool json_ = true;
  std::unique_ptr<RecordFormat> format_;
};

}  // namespace snug
