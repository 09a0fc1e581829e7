// Reads Parquet files row by row, as JSON. This is snug's own reader: the distributions on which snug is built do not
// package the format's library, and a data set of texts uses little of what that can do.
// https://github.com/apache/parquet-format
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "base/file.h"
#include "format/parquet_column.h"
#include "format/parquet_schema.h"

namespace snug {

// Reads columns of text, numbers, booleans and times, structs and lists of them at any depth, with nulls anywhere;
// plain and dictionary pages of both versions; uncompressed, snappy, gzip and zstd. Times and dates are the numbers
// that are stored. Numbers that are not finite become null (NaN, by which pandas marks missing values) or the texts
// "inf" and "-inf". An image as the library `datasets` writes it, a struct of `bytes` and `path`, has its bytes
// as a data URL. It holds one page of each leaf, and its dictionary.
class ParquetReader {
 public:
  // The most bytes that these take, together with the file's bytes of the page that is being read.
  static constexpr uint64_t kMostHeld = uint64_t{2} << 30;
  // `json_columns` names columns whose texts are lists or objects written as JSON, and become those. Throws UserError
  // with file and column for a file that is broken, or that has what cannot be read (above, and
  // parse_parquet_footer()).
  explicit ParquetReader(const std::filesystem::path& path, std::set<std::string, std::less<>> json_columns = {},
                         uint64_t most_held = kMostHeld);

  int64_t rows_read() const { return row_; }
  // Appends the next row as a JSON object with a key for each column; returns false at the end. Throws UserError with
  // file and column for what is broken, for text that is not UTF-8, for a row of more than `max_bytes`, and for more
  // than `most_held`.
  bool next(std::string& out, uint64_t max_bytes);

 private:
  void begin_group();
  void write(const ParquetNode& node, std::string& out);
  void write_list(const ParquetNode& node, std::string& out);
  void write_leaf(ParquetColumn& column, std::string& out);
  void write_text(const ParquetColumn& column, std::string& out) const;
  // Takes an entry of each leaf within a node that is absent, or is an empty list.
  void skip(const ParquetNode& node, int definition);

  std::string name_;
  File file_;
  ParquetSchema schema_;
  size_t group_ = 0;       // index of the next one
  int64_t rows_left_ = 0;  // of the current group
  int64_t row_ = 0;
  ParquetRoom room_;
  std::deque<ParquetColumn> columns_;  // by leaf
  std::set<std::string, std::less<>> json_columns_;
  uint64_t max_bytes_ = 0;
};

}  // namespace snug
