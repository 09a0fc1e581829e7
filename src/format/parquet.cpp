#include "format/parquet.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "format/json_text.h"
#include "format/load.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr uint64_t kMaxFooterBytes = uint64_t{64} << 20;
constexpr std::string_view kMagic = "PAR1";

ParquetSchema read_schema(const File& file, const std::string& name) {
  const uint64_t size = file.size();
  std::byte ends[12];
  if (size < sizeof(ends)) user_error("{}: found {} bytes, expected a Parquet file", name, size);
  file.read(0, std::span(ends, 4));
  file.read(size - 8, std::span(ends + 4, 8));
  const auto text = [&](size_t at) { return std::string_view(reinterpret_cast<const char*>(ends) + at, 4); };
  if (text(0) == "PARE" || text(8) == "PARE") user_error("{}: the Parquet file is encrypted", name);
  if (text(0) != kMagic) user_error("{}: found no Parquet file, which begins with {}", name, kMagic);
  if (text(8) != kMagic) {
    user_error("{}: found no {} at its end, as Parquet files have: it is cut short, or still being written", name,
               kMagic);
  }
  const uint64_t footer_bytes = load<uint32_t>(ends + 4);
  if (footer_bytes > size - sizeof(ends) || footer_bytes > kMaxFooterBytes) {
    user_error("{}: found a footer of {} bytes in a file of {}, expected at most 64 MiB within it", name, footer_bytes,
               size);
  }
  const uint64_t begin = size - 8 - footer_bytes;
  std::vector<std::byte> footer(static_cast<size_t>(footer_bytes));
  file.read(begin, footer);
  return parse_parquet_footer(footer, begin, name);
}

// Appends digits with the point `scale` before the end: -5 at scale 2 is -0.05.
void append_decimal(std::string& out, int64_t value, int scale) {
  std::string digits = fmt::format("{}", value);
  const size_t sign = value < 0;
  const auto behind = static_cast<size_t>(scale);
  if (digits.size() - sign <= behind) digits.insert(sign, behind + 1 - (digits.size() - sign), '0');
  if (scale > 0) digits.insert(digits.size() - behind, ".");
  out += digits;
}

void append_float(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "null";
  } else if (std::isinf(value)) {
    out += value > 0 ? "\"inf\"" : "\"-inf\"";
  } else {
    out += fmt::format("{}", value);
  }
}

// Appends a data URL (RFC 2397) of bytes in base64 (RFC 4648), as a JSON string. They say themselves of what type they
// are.
void append_data_url(std::string& out, std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  out += "\"data:;base64,";
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; k++) bits = bits << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; k++) out += k <= count ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  out += '"';
}

int64_t as_signed(const ParquetColumn& column) {
  const uint64_t bits = column.value().bits;
  return column.leaf().type == ParquetType::Int32 ? int64_t{static_cast<int32_t>(bits)} : static_cast<int64_t>(bits);
}

}  // namespace

ParquetReader::ParquetReader(const std::filesystem::path& path, std::set<std::string, std::less<>> json_columns,
                             uint64_t most_held)
    : name_(path.string()),
      file_(File::open_read(path, IoMode::Buffered)),
      schema_(read_schema(file_, name_)),
      room_(most_held),
      json_columns_(std::move(json_columns)) {}

bool ParquetReader::next(std::string& out, uint64_t max_bytes) {
  while (rows_left_ == 0) {
    for (const ParquetColumn& column : columns_) {
      if (!column.done()) user_error("{}: found values behind the last row of a row group", column.place());
    }
    columns_.clear();
    room_.give_all_back();
    if (group_ == schema_.groups.size()) return false;
    begin_group();
  }
  max_bytes_ = out.size() + max_bytes;
  for (const ParquetColumn& column : columns_) {
    if (column.repetition() != 0) user_error("{}: found a list that no row begins", column.place());
  }
  ++row_;
  --rows_left_;
  write(schema_.root, out);
  return true;
}

void ParquetReader::begin_group() {
  const ParquetRowGroup& group = schema_.groups[group_++];
  rows_left_ = group.rows;
  const std::vector<const ParquetNode*> leaves = leaves_of(schema_.root);
  for (size_t i = 0; i < leaves.size(); ++i) columns_.emplace_back(file_, *leaves[i], group.chunks[i], name_, room_);
}

void ParquetReader::write(const ParquetNode& node, std::string& out) {
  ParquetColumn& first = columns_[node.first_leaf];
  if (node.optional && first.definition() < node.definition) {
    skip(node, node.definition);
    out += "null";
    return;
  }
  switch (node.kind) {
    case ParquetNode::Kind::Leaf:
      write_leaf(first, out);
      break;
    case ParquetNode::Kind::List:
      write_list(node, out);
      break;
    case ParquetNode::Kind::Struct:
      for (size_t i = 0; i < node.children.size(); ++i) {
        out += i == 0 ? '{' : ',';
        append_json_string(out, node.children[i].name);
        out += ':';
        write(node.children[i], out);
      }
      out += '}';
      break;
  }
  if (out.size() > max_bytes_) user_error("{}, row {}: found a row of too many bytes for a sample", name_, row_);
}

void ParquetReader::write_list(const ParquetNode& node, std::string& out) {
  ParquetColumn& first = columns_[node.first_leaf];
  out += '[';
  if (first.definition() <= node.definition) {
    skip(node, node.definition + 1);
    out += ']';
    return;
  }
  for (bool more = true; more;) {
    write(node.children[0], out);
    more = !first.done() && first.repetition() == node.repetition;
    if (more) out += ',';
    for (size_t i = 1; i < node.leaf_count; ++i) {
      const ParquetColumn& other = columns_[node.first_leaf + i];
      if ((!other.done() && other.repetition() == node.repetition) != more) {
        user_error("{}, row {}: found a list of another length than that of its first column", other.place(), row_);
      }
    }
  }
  out += ']';
}

void ParquetReader::write_leaf(ParquetColumn& column, std::string& out) {
  const ParquetNode& leaf = column.leaf();
  if (column.definition() != leaf.definition) {
    user_error("{}, row {}: found no value where the schema has one", column.place(), row_);
  }
  const ParquetScalar& value = column.value();
  switch (leaf.value) {
    case ParquetValue::Boolean:
      out += value.bits ? "true" : "false";
      break;
    case ParquetValue::Signed:
      out += fmt::format("{}", as_signed(column));
      break;
    case ParquetValue::Unsigned:
      out += fmt::format("{}", value.bits);
      break;
    case ParquetValue::Decimal:
      append_decimal(out, as_signed(column), leaf.scale);
      break;
    case ParquetValue::Float:
      if (leaf.type == ParquetType::Float) {
        append_float(out, double{std::bit_cast<float>(static_cast<uint32_t>(value.bits))});
      } else {
        append_float(out, std::bit_cast<double>(value.bits));
      }
      break;
    case ParquetValue::Image:
      append_data_url(out, value.text);
      break;
    case ParquetValue::Text:
    case ParquetValue::Json:
    case ParquetValue::Bytes:
      write_text(column, out);
      break;
  }
  column.advance();
}

void ParquetReader::write_text(const ParquetColumn& column, std::string& out) const {
  const std::string_view text = column.value().text;
  if (const auto bad = find_invalid_utf8(text)) {
    user_error("{}, row {}: found byte {:#04x}, which is not UTF-8: a column of bytes; leave it out of the file",
               column.place(), row_, static_cast<unsigned char>(text[*bad]));
  }
  const ParquetNode& leaf = column.leaf();
  append_json_text(out, text, leaf.value == ParquetValue::Json || json_columns_.contains(leaf.path));
}

void ParquetReader::skip(const ParquetNode& node, int definition) {
  for (size_t i = 0; i < node.leaf_count; ++i) {
    ParquetColumn& column = columns_[node.first_leaf + i];
    if (column.definition() >= definition) {
      user_error("{}, row {}: found a value where its first column has none", column.place(), row_);
    }
    column.advance();
  }
}

}  // namespace snug
