#include "format/parquet_schema.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "format/thrift.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMaxNameBytes = 1024, kMaxElements = 10000;
constexpr std::string_view kAdvice = "; write the file without it, or with the column as text or numbers";

// Describes an element of the schema, as the format lists them: a node before its children. Names are those of
// parquet.thrift.
struct SchemaElement {
  std::optional<int64_t> type, converted_type, logical_type;
  int64_t repetition = 0, children = 0, scale = 0;
  bool is_signed = true;
  std::string name;
};

enum Repetition { kRequired, kOptional, kRepeated };

// Lists values of ConvertedType, and the fields of the union LogicalType that matter here.
enum Converted {
  kUtf8 = 0,
  kMap = 1,
  kMapKeyValue = 2,
  kList = 3,
  kEnum = 4,
  kDecimal = 5,
  kUint8 = 11,
  kUint64 = 14,
  kJson = 19,
  kBson = 20,
  kInterval = 21
};
enum Logical {
  kLogicalString = 1,
  kLogicalMap = 2,
  kLogicalList = 3,
  kLogicalDecimal = 5,
  kLogicalInteger = 10,
  kLogicalJson = 12
};

void read_logical_type(ThriftReader& in, SchemaElement& element) {
  in.read_struct([&](ThriftReader::Field kind) {
    element.logical_type = kind.id;
    if (kind.type != ThriftReader::Type::Struct) in.fail("a logical type");
    if (kind.id != kLogicalDecimal && kind.id != kLogicalInteger) return in.skip(kind.type);
    in.read_struct([&](ThriftReader::Field field) {
      if (kind.id == kLogicalDecimal && field.id == 1) {
        element.scale = in.integer(field);
      } else if (kind.id == kLogicalInteger && field.id == 2) {
        element.is_signed = in.boolean(field);
      } else {
        in.skip(field.type);
      }
    });
  });
}

SchemaElement read_element(ThriftReader& in) {
  SchemaElement out;
  bool named = false;
  in.read_struct([&](ThriftReader::Field field) {
    switch (field.id) {
      case 1:
        out.type = in.integer(field);
        return;
      case 3:
        out.repetition = in.integer(field);
        return;
      case 4:
        out.name = in.binary(field);
        named = true;
        return;
      case 5:
        out.children = in.integer(field);
        return;
      case 6:
        out.converted_type = in.integer(field);
        return;
      case 7:
        out.scale = in.integer(field);
        return;
      case 10:
        if (field.type != ThriftReader::Type::Struct) in.fail("a logical type");
        return read_logical_type(in, out);
      default:
        in.skip(field.type);
    }
  });
  if (!named || out.name.size() > kMaxNameBytes || find_invalid_utf8(out.name))
    in.fail(fmt::format("a column's name in UTF-8 within {} bytes", kMaxNameBytes));
  return out;
}

// Builds the tree of nodes from the list of elements.
class TreeBuilder {
 public:
  TreeBuilder(const std::vector<SchemaElement>& elements, const std::string& name) : elements_(elements), name_(name) {}

  ParquetNode build() {
    if (elements_.empty()) user_error("{}: found no schema in its footer", name_);
    ParquetNode root;
    const SchemaElement& element = next();
    read_fields(element, root, 0);
    if (at_ != elements_.size()) user_error("{}: found columns outside of the schema's root", name_);
    return root;
  }

 private:
  const SchemaElement& next() {
    if (at_ == elements_.size()) user_error("{}: found fewer columns in its schema than it says", name_);
    return elements_[at_++];
  }

  [[noreturn]] void refuse(const ParquetNode& node, std::string_view found) const {
    user_error("{}, column '{}': found {}, which cannot be read{}", name_, node.path, found, kAdvice);
  }

  void read_fields(const SchemaElement& element, ParquetNode& node, int depth) {
    node.kind = ParquetNode::Kind::Struct;
    node.first_leaf = leaves_;
    if (element.children <= 0) refuse(node, "a struct without fields");
    for (int64_t i = 0; i < element.children; ++i) node.children.push_back(read(node, depth + 1));
    node.leaf_count = leaves_ - node.first_leaf;
    mark_image(node);
  }

  // Finds an image as the library `datasets` writes it: a struct of its bytes and its path, either of them null.
  static void mark_image(ParquetNode& node) {
    const auto field = [&](std::string_view name) {
      return std::ranges::find(node.children, name, &ParquetNode::name);
    };
    const auto bytes = field("bytes"), path = field("path");
    if (node.children.size() != 2 || bytes == node.children.end() || path == node.children.end()) return;
    const auto is_leaf = [](const ParquetNode& one, ParquetValue value) {
      return one.kind == ParquetNode::Kind::Leaf && one.value == value;
    };
    if (is_leaf(*bytes, ParquetValue::Bytes) && is_leaf(*path, ParquetValue::Text)) bytes->value = ParquetValue::Image;
  }

  // Reads a node and what is below it.
  ParquetNode read(const ParquetNode& parent, int depth) {
    const SchemaElement& element = next();
    ParquetNode node;
    node.name = element.name;
    node.path = parent.path.empty() ? element.name : parent.path + "." + element.name;
    node.definition = parent.definition;
    node.repetition = parent.repetition;
    if (depth > kMaxDepth) refuse(node, fmt::format("more than {} levels", kMaxDepth));
    const bool list = element.converted_type == kList || element.logical_type == kLogicalList;
    const bool map =
        element.converted_type == kMap || element.converted_type == kMapKeyValue || element.logical_type == kLogicalMap;
    if (map) refuse(node, "a map");
    if (element.repetition != kRepeated) {
      node.optional = element.repetition == kOptional;
      node.definition += node.optional;
      if (list && !element.type) {
        read_list(element, node, depth);
      } else {
        read_value(element, node, depth);
      }
      return node;
    }
    // A repeated field with no list around it is a list that is always there.
    make_list(node);
    ParquetNode inner = element_of(node);
    read_value(element, inner, depth);
    finish_list(node, std::move(inner));
    return node;
  }

  // Reads the group LIST: its only field repeats, and is the element, or a group around it.
  void read_list(const SchemaElement& list, ParquetNode& node, int depth) {
    if (list.children != 1) refuse(node, "a list that is no list");
    const SchemaElement& repeated = next();
    if (repeated.repetition != kRepeated || depth + 2 > kMaxDepth) refuse(node, "a list that is no list");
    make_list(node);
    ParquetNode inner = element_of(node);
    // These rules are for files that were written before the format said so (LogicalTypes.md, "Backward-compatibility
    // rules").
    const bool is_element =
        repeated.type || repeated.children != 1 || repeated.name == "array" || repeated.name == list.name + "_tuple";
    if (is_element) {
      inner.path += "." + repeated.name;
      read_value(repeated, inner, depth + 1);
    } else {
      inner.path += "." + repeated.name;
      inner = read(inner, depth + 2);
    }
    finish_list(node, std::move(inner));
  }

  void make_list(ParquetNode& node) {
    node.kind = ParquetNode::Kind::List;
    node.first_leaf = leaves_;
    ++node.repetition;
  }
  static ParquetNode element_of(const ParquetNode& list) {
    ParquetNode inner;
    inner.name = list.name;
    inner.path = list.path;
    inner.definition = list.definition + 1;
    inner.repetition = list.repetition;
    return inner;
  }
  void finish_list(ParquetNode& node, ParquetNode inner) const {
    node.children.push_back(std::move(inner));
    node.leaf_count = leaves_ - node.first_leaf;
  }

  void read_value(const SchemaElement& element, ParquetNode& node, int depth) {
    if (!element.type) return read_fields(element, node, depth);
    node.kind = ParquetNode::Kind::Leaf;
    node.first_leaf = leaves_++;
    node.leaf_count = 1;
    if (*element.type < 0 || *element.type > static_cast<int64_t>(ParquetType::FixedBytes))
      refuse(node, "an unknown type");
    node.type = static_cast<ParquetType>(*element.type);
    const bool decimal = element.converted_type == kDecimal || element.logical_type == kLogicalDecimal;
    switch (node.type) {
      case ParquetType::Boolean:
        node.value = ParquetValue::Boolean;
        return;
      case ParquetType::Int32:
      case ParquetType::Int64: {
        const bool is_unsigned = element.converted_type >= kUint8 && element.converted_type <= kUint64;
        node.value = is_unsigned || !element.is_signed ? ParquetValue::Unsigned : ParquetValue::Signed;
        if (!decimal) return;
        if (element.scale < 0 || element.scale > 18) refuse(node, "decimals with more than 18 digits behind the point");
        node.value = ParquetValue::Decimal;
        node.scale = static_cast<int>(element.scale);
        return;
      }
      case ParquetType::Float:
      case ParquetType::Double:
        node.value = ParquetValue::Float;
        return;
      case ParquetType::Bytes:
        if (decimal) refuse(node, "decimals in bytes");
        if (element.converted_type == kBson) refuse(node, "BSON");
        node.value = element.converted_type == kJson || element.logical_type == kLogicalJson     ? ParquetValue::Json
                     : element.converted_type == kUtf8 || element.logical_type == kLogicalString ? ParquetValue::Text
                                                                                                 : ParquetValue::Bytes;
        return;
      case ParquetType::Int96:
        refuse(node, "times of 96 bits (INT96)");
      case ParquetType::FixedBytes:
        refuse(node, "values in bytes of fixed length");
    }
  }

  const std::vector<SchemaElement>& elements_;
  const std::string& name_;
  size_t at_ = 0, leaves_ = 0;
};

ParquetCodec codec_of(int64_t codec, const ParquetNode& leaf, const std::string& name) {
  switch (codec) {
    case 0:
      return ParquetCodec::None;
    case 1:
      return ParquetCodec::Snappy;
    case 2:
      return ParquetCodec::Gzip;
    case 6:
      return ParquetCodec::Zstd;
    default:
      break;
  }
  constexpr std::string_view kNames[] = {"", "", "", "LZO", "brotli", "LZ4", "", "LZ4"};
  user_error("{}, column '{}': found pages compressed by {}, expected snappy, gzip, zstd or none", name, leaf.path,
             codec >= 3 && codec <= 7 ? kNames[codec] : fmt::format("codec {}", codec));
}

// Reads ColumnMetaData.
ParquetChunk read_chunk_facts(ThriftReader& in, const ParquetNode& leaf, uint64_t data_bytes, const std::string& name) {
  ParquetChunk chunk;
  std::optional<int64_t> type, codec, values, bytes, data, dictionary;
  in.read_struct([&](ThriftReader::Field field) {
    switch (field.id) {
      case 1:
        type = in.integer(field);
        return;
      case 4:
        codec = in.integer(field);
        return;
      case 5:
        values = in.integer(field);
        return;
      case 7:
        bytes = in.integer(field);
        return;
      case 9:
        data = in.integer(field);
        return;
      case 11:
        dictionary = in.integer(field);
        return;
      default:
        in.skip(field.type);
    }
  });
  if (!type || !codec || !values || !bytes || !data) in.fail("a column's type, codec, number, bytes and offset");
  if (*type != static_cast<int64_t>(leaf.type)) {
    user_error("{}, column '{}': found pages of type {}, expected {} as in the schema", name, leaf.path, *type,
               static_cast<int>(leaf.type));
  }
  chunk.codec = codec_of(*codec, leaf, name);
  chunk.values = *values;
  if (*values == 0) {  // a table without rows: pyarrow then has no pages, and an offset of 0
    chunk.begin = chunk.end = data_bytes;
    return chunk;
  }
  // Some writers leave 0 if there is no dictionary.
  const int64_t begin = dictionary && *dictionary > 0 ? std::min(*dictionary, *data) : *data;
  if (*values < 0 || begin < 4 || *bytes < 0 || static_cast<uint64_t>(begin) > data_bytes ||
      static_cast<uint64_t>(*bytes) > data_bytes - static_cast<uint64_t>(begin)) {
    user_error("{}, column '{}': found pages outside of the file ({} bytes at {})", name, leaf.path, *bytes, begin);
  }
  chunk.begin = static_cast<uint64_t>(begin);
  chunk.end = chunk.begin + static_cast<uint64_t>(*bytes);
  return chunk;
}

ParquetChunk read_chunk(ThriftReader& in, const ParquetNode& leaf, uint64_t data_bytes, const std::string& name) {
  std::optional<ParquetChunk> chunk;
  in.read_struct([&](ThriftReader::Field field) {
    if (field.id == 1) user_error("{}, column '{}': its pages are in another file", name, leaf.path);
    if (field.id == 8 || field.id == 9) user_error("{}, column '{}': its pages are encrypted", name, leaf.path);
    if (field.id == 3) {
      if (field.type != ThriftReader::Type::Struct) in.fail("the facts of a column");
      chunk = read_chunk_facts(in, leaf, data_bytes, name);
    } else {
      in.skip(field.type);
    }
  });
  if (!chunk) in.fail("the facts of a column");
  return *chunk;
}

ParquetRowGroup read_group(ThriftReader& in, const std::vector<const ParquetNode*>& leaves, uint64_t data_bytes,
                           const std::string& name) {
  ParquetRowGroup group;
  in.read_struct([&](ThriftReader::Field field) {
    if (field.id == 1) {
      in.read_structs(field, [&] {
        if (group.chunks.size() == leaves.size()) in.fail("as many columns in a row group as in the schema");
        group.chunks.push_back(read_chunk(in, *leaves[group.chunks.size()], data_bytes, name));
      });
    } else if (field.id == 3) {
      group.rows = in.integer(field);
    } else {
      in.skip(field.type);
    }
  });
  if (group.chunks.size() != leaves.size() || group.rows < 0) {
    in.fail("as many columns in a row group as in the schema");
  }
  return group;
}

void add_leaves(const ParquetNode& node, std::vector<const ParquetNode*>& out) {
  if (node.kind == ParquetNode::Kind::Leaf) out.push_back(&node);
  for (const ParquetNode& child : node.children) add_leaves(child, out);
}

}  // namespace

std::vector<const ParquetNode*> leaves_of(const ParquetNode& node) {
  std::vector<const ParquetNode*> out;
  add_leaves(node, out);
  return out;
}

ParquetSchema parse_parquet_footer(std::span<const std::byte> footer, uint64_t data_bytes, const std::string& name) {
  ParquetSchema schema;
  std::vector<SchemaElement> elements;
  std::vector<const ParquetNode*> leaves;
  ThriftReader in(footer, name);
  in.read_struct([&](ThriftReader::Field field) {
    if (field.id == 2) {
      if (!elements.empty()) in.fail("one schema");
      in.read_structs(field, [&] {
        elements.push_back(read_element(in));
        if (elements.size() > kMaxElements) in.fail(fmt::format("at most {} columns", kMaxElements));
      });
      schema.root = TreeBuilder(elements, name).build();
      leaves = leaves_of(schema.root);
    } else if (field.id == 4) {
      if (leaves.empty()) in.fail("a schema before the row groups");
      in.read_structs(field, [&] { schema.groups.push_back(read_group(in, leaves, data_bytes, name)); });
    } else if (field.id == 8) {
      user_error("{}: the file is encrypted", name);
    } else {
      in.skip(field.type);
    }
  });
  if (leaves.empty()) in.fail("a schema");
  return schema;
}

}  // namespace snug
