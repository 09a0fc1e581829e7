// Reads the footer of a Parquet file: what its columns are, and where their bytes lie.
// https://github.com/apache/parquet-format (parquet.thrift, LogicalTypes.md)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace snug {

// Says how a leaf's values are stored, by the format's numbers.
enum class ParquetType { Boolean, Int32, Int64, Int96, Float, Double, Bytes, FixedBytes };

// Says what a leaf's values become.
enum class ParquetValue {
  Boolean,
  Signed,
  Unsigned,
  Decimal,
  Float,
  Text,
  Json,
  Bytes,  // not said to be text, and taken for it
  Image   // bytes of an image, beside its path: a data URL
};

// Describes a column, or a part of one. Levels are as in Dremel: a value whose definition level is below `definition`
// is absent (null) at this node; a list's elements have a definition level of `definition` + 1 or more, and each but
// its first has the repetition level `repetition`.
struct ParquetNode {
  enum class Kind { Leaf, Struct, List };
  Kind kind = Kind::Leaf;
  std::string name, path;  // path: with the names of the nodes above it, as in "messages.list.element.role"
  bool optional = false;
  int definition = 0, repetition = 0;
  std::vector<ParquetNode> children;      // a struct's fields; a list's element
  size_t first_leaf = 0, leaf_count = 0;  // leaves within it, in order
  // These members are for leaves:
  ParquetType type = ParquetType::Bytes;
  ParquetValue value = ParquetValue::Text;
  int scale = 0;  // of decimals: digits behind the point
};

enum class ParquetCodec { None, Snappy, Gzip, Zstd };

// Locates the pages of one leaf in one row group.
struct ParquetChunk {
  ParquetCodec codec = ParquetCodec::None;
  uint64_t begin = 0, end = 0;  // bytes of the file
  int64_t values = 0;           // with nulls and empty lists
};

struct ParquetRowGroup {
  int64_t rows = 0;
  std::vector<ParquetChunk> chunks;  // by leaf
};

struct ParquetSchema {
  ParquetNode root;  // a struct
  std::vector<ParquetRowGroup> groups;
};

// Parses a footer. `data_bytes` is the size of what lies before it, where all chunks must be. Throws UserError that
// names file and column for what is broken, and for columns that cannot be read: maps, decimals and other values in
// bytes of fixed length, INT96, encryption, codecs other than snappy, gzip and zstd.
ParquetSchema parse_parquet_footer(std::span<const std::byte> footer, uint64_t data_bytes, const std::string& name);

// Returns the leaves within a node, in order.
std::vector<const ParquetNode*> leaves_of(const ParquetNode& node);

}  // namespace snug
