#include "format/parquet_column.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "format/load.h"

namespace snug {
namespace {

// Lists encodings, by the format's numbers.
enum { kPlain = 0, kPlainDictionary = 2, kRle = 3, kRleDictionary = 8 };

std::string encoding_name(int64_t encoding) {
  constexpr std::string_view kNames[] = {
      "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
      "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
      "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
  return encoding >= 0 && encoding < 10 ? std::string(kNames[encoding]) : fmt::format("{}", encoding);
}

int bits_for(int most) { return static_cast<int>(std::bit_width(static_cast<unsigned>(most))); }

}  // namespace

ParquetColumn::ParquetColumn(const File& file, const ParquetNode& leaf, const ParquetChunk& chunk,
                             const std::string& name, ParquetRoom& room)
    : file_(file),
      leaf_(leaf),
      chunk_(chunk),
      room_(room),
      place_(fmt::format("{}, column '{}'", name, leaf.path)),
      offset_(chunk.begin),
      left_(chunk.values) {
  room_.take(sizeof(*this), place_);
  load_entry();
}

int ParquetColumn::definition() const {
  if (left_ == 0) user_error("{}: a row group ends before its last row", place_);
  return definition_;
}

void ParquetColumn::advance() {
  check(left_ > 0, "a Parquet column is read beyond its end");
  --left_;
  load_entry();
}

void ParquetColumn::load_entry() {
  repetition_ = definition_ = 0;
  if (left_ == 0) return;
  while (page_left_ == 0) begin_page();
  --page_left_;
  repetition_ = static_cast<int>(repetitions_.next());
  definition_ = static_cast<int>(definitions_.next());
  if (repetition_ > leaf_.repetition || definition_ > leaf_.definition) {
    user_error("{}: found levels {} and {}, expected at most {} and {}", place_, repetition_, definition_,
               leaf_.repetition, leaf_.definition);
  }
  if (definition_ == leaf_.definition) value_ = next_value();
}

void ParquetColumn::begin_page() {
  if (offset_ >= chunk_.end) user_error("{}: its pages end {} values early", place_, left_);
  room_.give_back(page_.size());
  page_ = std::vector<std::byte>();
  ParquetPage page = read_parquet_page(file_, chunk_, offset_, place_, room_);
  offset_ = page.end;
  if (page.kind == ParquetPageKind::Dictionary) {
    read_dictionary(std::move(page));
  } else if (page.kind != ParquetPageKind::Index) {
    begin_data(std::move(page));
  }
}

void ParquetColumn::begin_data(ParquetPage page) {
  page_ = std::move(page.bytes);
  page_left_ = page.values;
  std::span<const std::byte> bytes(page_);
  if (page.kind == ParquetPageKind::DataV2) {
    const auto repetitions = static_cast<size_t>(page.repetition_bytes);
    const auto definitions = static_cast<size_t>(page.definition_bytes);
    repetitions_ = RunDecoder(bytes.first(repetitions), bits_for(leaf_.repetition), &place_);
    definitions_ = RunDecoder(bytes.subspan(repetitions, definitions), bits_for(leaf_.definition), &place_);
    bytes = bytes.subspan(repetitions + definitions);
  } else {
    repetitions_ = take_levels(bytes, leaf_.repetition, page.repetition_encoding);
    definitions_ = take_levels(bytes, leaf_.definition, page.definition_encoding);
  }
  begin_values(bytes, page.encoding);
}

RunDecoder ParquetColumn::take_levels(std::span<const std::byte>& bytes, int most, int64_t encoding) const {
  if (most == 0) return {};
  if (encoding != kRle) {
    user_error("{}: found levels in encoding {}, expected RLE; write the file again with pyarrow or pandas", place_,
               encoding_name(encoding));
  }
  const uint64_t size = bytes.size() < 4 ? UINT64_MAX : load<uint32_t>(bytes.data());
  if (size > bytes.size() - std::min<size_t>(4, bytes.size())) user_error("{}: a page ends inside its levels", place_);
  const RunDecoder levels(bytes.subspan(4, static_cast<size_t>(size)), bits_for(most), &place_);
  bytes = bytes.subspan(4 + static_cast<size_t>(size));
  return levels;
}

void ParquetColumn::begin_values(std::span<const std::byte> bytes, int64_t encoding) {
  if (encoding == kPlain) {
    encoding_ = Encoding::Plain;
    plain_ = PlainDecoder(bytes, leaf_.type, &place_);
  } else if (encoding == kPlainDictionary || encoding == kRleDictionary) {
    encoding_ = Encoding::Dictionary;
    // A page of nulls only may have nothing here.
    const int bits = bytes.empty() ? 0 : std::to_integer<int>(bytes[0]);
    if (bits > 32)
      user_error("{}: found numbers of {} bits in its dictionary's pages, expected at most 32", place_, bits);
    indices_ = RunDecoder(bytes.subspan(bytes.empty() ? 0 : 1), bits, &place_);
  } else if (encoding == kRle && leaf_.type == ParquetType::Boolean) {
    encoding_ = Encoding::Runs;
    indices_ = take_levels(bytes, 1, kRle);
  } else {
    user_error(
        "{}: found values in encoding {}, expected PLAIN or a dictionary; write the file again with pyarrow or pandas, "
        "without choosing encodings",
        place_, encoding_name(encoding));
  }
}

void ParquetColumn::read_dictionary(ParquetPage page) {
  if (!dictionary_.empty()) user_error("{}: found a second dictionary in a row group", place_);
  if (page.encoding != kPlain && page.encoding != kPlainDictionary) {
    user_error("{}: found a dictionary in encoding {}, expected PLAIN", place_, encoding_name(page.encoding));
  }
  // Writers end dictionaries near 1 MiB. Each value takes more memory here than an empty text takes in the file.
  constexpr uint64_t kMaxDictionaryBytes = uint64_t{64} << 20;
  if (leaf_.type == ParquetType::Boolean || page.bytes.size() > kMaxDictionaryBytes) {
    user_error("{}: found a dictionary of {} bytes{}, expected at most {}, and none of booleans", place_,
               page.bytes.size(), leaf_.type == ParquetType::Boolean ? " of booleans" : "", kMaxDictionaryBytes);
  }
  dictionary_bytes_ = std::move(page.bytes);
  const uint64_t most = dictionary_bytes_.size() / 4;
  if (static_cast<uint64_t>(page.values) > most) {
    user_error("{}: found a dictionary of {} values in {} bytes", place_, page.values, dictionary_bytes_.size());
  }
  room_.take(static_cast<uint64_t>(page.values) * sizeof(ParquetScalar), place_);
  PlainDecoder values(dictionary_bytes_, leaf_.type, &place_);
  dictionary_.reserve(static_cast<size_t>(page.values));
  for (int64_t i = 0; i < page.values; ++i) dictionary_.push_back(values.next());
}

ParquetScalar ParquetColumn::next_value() {
  switch (encoding_) {
    case Encoding::Plain:
      return plain_.next();
    case Encoding::Runs:
      return {indices_.next(), {}};
    case Encoding::Dictionary:
      break;
  }
  const uint32_t index = indices_.next();
  if (index >= dictionary_.size()) {
    user_error("{}: found value {} of a dictionary of {}", place_, index, dictionary_.size());
  }
  return dictionary_[index];
}

}  // namespace snug
