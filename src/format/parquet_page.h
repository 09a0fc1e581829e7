// Reads pages of a Parquet file: headers, decompression, and the encodings of levels and values.
// https://github.com/apache/parquet-format (parquet.thrift, Encodings.md)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "format/parquet_schema.h"

namespace snug {

enum class ParquetPageKind { Data, Index, Dictionary, DataV2 };

struct ParquetPage {
  ParquetPageKind kind = ParquetPageKind::Data;
  int64_t values = 0;  // with nulls and empty lists
  int64_t encoding = 0, definition_encoding = 3, repetition_encoding = 3;
  uint64_t definition_bytes = 0, repetition_bytes = 0;  // of DataV2, whose levels come first and are never compressed
  std::vector<std::byte> bytes;                         // decompressed
  uint64_t end = 0;                                     // where the next page begins in the file
};

// Counts the bytes that all columns of a file hold at once, and limits them: a small file can claim thousands of
// columns, each with a page of 1 GiB.
class ParquetRoom {
 public:
  explicit ParquetRoom(uint64_t most) : most_(most) {}
  // Takes bytes before they are allocated for the column that `place` names with its file. Throws UserError for more
  // than the limit.
  void take(uint64_t bytes, const std::string& place);
  void give_back(uint64_t bytes) { held_ -= bytes; }
  void give_all_back() { held_ = 0; }

 private:
  uint64_t most_, held_ = 0;
};

// Reads the page at `offset` of a chunk. `place` names file and column in errors. Throws UserError for what is broken,
// and for a page of more than 1 GiB. The page's bytes are taken from `room`, and those of the file until it returns.
ParquetPage read_parquet_page(const File& file, const ParquetChunk& chunk, uint64_t offset, const std::string& place,
                              ParquetRoom& room);

// Decodes RLE and bit-packed runs of unsigned numbers of up to 32 bits.
class RunDecoder {
 public:
  RunDecoder() = default;
  RunDecoder(std::span<const std::byte> bytes, int bits, const std::string* place)
      : bytes_(bytes), bits_(bits), place_(place) {}
  // Returns the next number; throws UserError at the end of the bytes.
  uint32_t next();

 private:
  void begin_run();
  [[noreturn]] void fail() const;

  std::span<const std::byte> bytes_;
  int bits_ = 0;
  const std::string* place_ = nullptr;
  size_t at_ = 0;
  uint64_t left_ = 0;    // of the run
  bool packed_ = false;  // bit-packed, as opposed to one repeated value
  uint32_t value_ = 0;
  uint64_t bit_ = 0;  // of the next packed number, from the run's first byte
  size_t packed_bytes_ = 0;
};

// Holds one value: a number's bits, or text.
struct ParquetScalar {
  uint64_t bits = 0;
  std::string_view text;
};

// Decodes values laid one after another (PLAIN).
class PlainDecoder {
 public:
  PlainDecoder() = default;
  PlainDecoder(std::span<const std::byte> bytes, ParquetType type, const std::string* place)
      : bytes_(bytes), type_(type), place_(place) {}
  // Returns the next value, whose text refers to the bytes; throws UserError at their end.
  ParquetScalar next();

 private:
  std::span<const std::byte> take(uint64_t count);

  std::span<const std::byte> bytes_;
  ParquetType type_ = ParquetType::Bytes;
  const std::string* place_ = nullptr;
  size_t at_ = 0;
  int bit_ = 0;  // of booleans
};

}  // namespace snug
