// Reads the values of one leaf of a Parquet file in one row group, page by page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/parquet_page.h"
#include "format/parquet_schema.h"

namespace snug {

// Walks over entries: a value, a null or an empty list, each with its levels. It holds one page and the dictionary.
// Their bytes are taken from the room, which the columns of a file share. The file, the leaf and the room must outlive
// it, and it must not move.
class ParquetColumn {
 public:
  // `name` is the file's, for errors.
  ParquetColumn(const File& file, const ParquetNode& leaf, const ParquetChunk& chunk, const std::string& name,
                ParquetRoom& room);
  ParquetColumn(const ParquetColumn&) = delete;
  ParquetColumn& operator=(const ParquetColumn&) = delete;

  const ParquetNode& leaf() const { return leaf_; }
  const std::string& place() const { return place_; }
  bool done() const { return left_ == 0; }
  // Return the levels of the current entry. Throw UserError at the end, where the repetition is 0, as at a row's
  // beginning.
  int definition() const;
  int repetition() const { return repetition_; }
  // Returns the current entry's value, which refers to the page; its definition must be the leaf's.
  const ParquetScalar& value() const { return value_; }
  // Goes to the next entry.
  void advance();

 private:
  void load_entry();
  void begin_page();
  void begin_data(ParquetPage page);
  void begin_values(std::span<const std::byte> bytes, int64_t encoding);
  void read_dictionary(ParquetPage page);
  // Takes the levels at the beginning of a page of the first version.
  RunDecoder take_levels(std::span<const std::byte>& bytes, int most, int64_t encoding) const;
  ParquetScalar next_value();

  const File& file_;
  const ParquetNode& leaf_;
  const ParquetChunk& chunk_;
  ParquetRoom& room_;
  std::string place_;
  uint64_t offset_;        // of the next page in the file
  int64_t left_;           // entries of the chunk, including the current one
  int64_t page_left_ = 0;  // entries of the page behind the current one

  enum class Encoding { Plain, Dictionary, Runs } encoding_ = Encoding::Plain;
  std::vector<std::byte> page_, dictionary_bytes_;
  std::vector<ParquetScalar> dictionary_;
  RunDecoder definitions_, repetitions_, indices_;
  PlainDecoder plain_;
  int definition_ = 0, repetition_ = 0;
  ParquetScalar value_;
};

}  // namespace snug
