#include "format/parquet_page.h"

#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"
#include "format/load.h"
#include "format/thrift.h"

namespace snug {
namespace {

constexpr uint64_t kMaxPageBytes = uint64_t{1} << 30;
// A header has at most this many bytes, as it holds statistics that may be long texts.
constexpr uint64_t kHeaderBytes = 4096, kMaxHeaderBytes = uint64_t{16} << 20;

struct PageHeader {
  ParquetPage page;
  int64_t kind = -1, packed_bytes = -1, whole_bytes = -1;
  bool compressed = true;
};

// Reads DataPageHeader, DictionaryPageHeader or DataPageHeaderV2, by the field of the header.
void read_details(ThriftReader& in, PageHeader& out, ThriftReader::Field header) {
  if (header.type != ThriftReader::Type::Struct) in.fail("a page's header");
  ParquetPage& page = out.page;
  const bool v2 = header.id == 8, dictionary = header.id == 7;
  in.read_struct([&](ThriftReader::Field field) {
    if (field.id == 1) {
      page.values = in.integer(field);
    } else if (field.id == (v2 ? 4 : 2)) {
      page.encoding = in.integer(field);
    } else if (v2 && (field.id == 5 || field.id == 6)) {
      const int64_t bytes = in.integer(field);
      if (bytes < 0) in.fail("levels of 0 bytes or more");
      (field.id == 5 ? page.definition_bytes : page.repetition_bytes) = static_cast<uint64_t>(bytes);
    } else if (v2 && field.id == 7) {
      out.compressed = in.boolean(field);
    } else if (!v2 && !dictionary && (field.id == 3 || field.id == 4)) {
      (field.id == 3 ? page.definition_encoding : page.repetition_encoding) = in.integer(field);
    } else {
      in.skip(field.type);
    }
  });
}

PageHeader parse_header(std::span<const std::byte> bytes, const std::string& place, size_t& length) {
  PageHeader out;
  ThriftReader in(bytes, place);
  in.read_struct([&](ThriftReader::Field field) {
    if (field.id == 1) {
      out.kind = in.integer(field);
    } else if (field.id == 2) {
      out.whole_bytes = in.integer(field);
    } else if (field.id == 3) {
      out.packed_bytes = in.integer(field);
    } else if (field.id == 5 || field.id == 7 || field.id == 8) {
      read_details(in, out, field);
    } else {
      in.skip(field.type);
    }
  });
  length = in.position();
  if (out.kind < 0 || out.kind > 3) in.fail("a data page or a dictionary page");
  out.page.kind = static_cast<ParquetPageKind>(out.kind);
  return out;
}

PageHeader read_header(const File& file, uint64_t offset, uint64_t end, const std::string& place, size_t& length) {
  for (uint64_t size = kHeaderBytes;; size *= 16) {
    const bool last = size >= end - offset || size >= kMaxHeaderBytes;
    std::vector<std::byte> bytes(static_cast<size_t>(std::min(size, end - offset)));
    file.read(offset, bytes);
    try {
      return parse_header(bytes, place, length);
    } catch (const ThriftTruncated&) {
      if (last) throw;
    }
  }
}

// Returns the most bytes that an encoder's output can hold for its packed size: a larger claim would only take memory.
uint64_t most_bytes(ParquetCodec codec, uint64_t packed) {
  const uint64_t ratio = codec == ParquetCodec::Snappy ? 64 : codec == ParquetCodec::Gzip ? 1100 : 50000;
  return packed * ratio + 1024;
}

bool inflate_whole(std::span<const std::byte> from, std::span<std::byte> to) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 32) != Z_OK) return false;  // gzip or zlib, as some writers use it
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(from.data()));
  stream.avail_in = static_cast<uInt>(from.size());
  stream.next_out = reinterpret_cast<Bytef*>(to.data());
  stream.avail_out = static_cast<uInt>(to.size());
  const int result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  return result == Z_STREAM_END && stream.avail_out == 0;
}

// Fills `to`; returns false if `from` is damaged or has another length.
bool decompress(ParquetCodec codec, std::span<const std::byte> from, std::span<std::byte> to) {
  const auto* const text = reinterpret_cast<const char*>(from.data());
  size_t length = 0;
  switch (codec) {
    case ParquetCodec::None:
      if (from.size() != to.size()) return false;
      std::copy(from.begin(), from.end(), to.begin());
      return true;
    case ParquetCodec::Snappy:
      return snappy::GetUncompressedLength(text, from.size(), &length) && length == to.size() &&
             snappy::RawUncompress(text, from.size(), reinterpret_cast<char*>(to.data()));
    case ParquetCodec::Gzip:
      return inflate_whole(from, to);
    case ParquetCodec::Zstd:
      break;
  }
  return ZSTD_decompress(to.data(), to.size(), from.data(), from.size()) == to.size();
}

// Fails for a page with fewer numbers than it says.
[[noreturn]] void fail_short(const std::string& place) { user_error("{}: a page ends before its last value", place); }

}  // namespace

void ParquetRoom::take(uint64_t bytes, const std::string& place) {
  if (bytes > most_ - held_) {
    user_error(
        "{}: found {} bytes beside {} of all columns' pages and dictionaries that are read at once, expected at most "
        "{} together; leave columns out of the file, or write it again with smaller pages",
        place, bytes, held_, most_);
  }
  held_ += bytes;
}

ParquetPage read_parquet_page(const File& file, const ParquetChunk& chunk, uint64_t offset, const std::string& place,
                              ParquetRoom& room) {
  size_t length = 0;
  PageHeader header = read_header(file, offset, chunk.end, place, length);
  ParquetPage& page = header.page;
  const uint64_t begin = offset + length, left = chunk.end - begin;
  if (header.packed_bytes < 0 || static_cast<uint64_t>(header.packed_bytes) > left || header.whole_bytes < 0 ||
      static_cast<uint64_t>(header.whole_bytes) > kMaxPageBytes || page.values < 0) {
    user_error("{}: found a page of {} bytes ({} unpacked) at {}, expected at most {} and 1 GiB", place,
               header.packed_bytes, header.whole_bytes, begin, left);
  }
  const auto packed = static_cast<uint64_t>(header.packed_bytes), whole = static_cast<uint64_t>(header.whole_bytes);
  page.end = begin + packed;
  if (page.kind == ParquetPageKind::Index) return std::move(page);
  const ParquetCodec codec = header.compressed ? chunk.codec : ParquetCodec::None;
  // Levels of the second version stand before what is compressed.
  const uint64_t levels = page.definition_bytes + page.repetition_bytes;
  if (page.definition_bytes > packed || levels > packed || levels > whole ||
      whole - levels > (codec == ParquetCodec::None ? packed - levels : most_bytes(codec, packed - levels))) {
    user_error("{}: found a page of {} bytes that says it has {} unpacked", place, packed, whole);
  }
  room.take(packed + whole, place);
  std::vector<std::byte> bytes(static_cast<size_t>(packed));
  file.read(begin, bytes);
  page.bytes.resize(static_cast<size_t>(whole));
  const auto at = static_cast<std::ptrdiff_t>(levels);
  std::copy(bytes.begin(), bytes.begin() + at, page.bytes.begin());
  const bool empty = packed == levels && whole == levels;  // some writers leave out the frame of no bytes
  if (!empty && !decompress(codec, std::span(bytes).subspan(levels), std::span(page.bytes).subspan(levels))) {
    user_error("{}: found a damaged page at {}", place, begin);
  }
  room.give_back(packed);
  return std::move(page);
}

uint32_t RunDecoder::next() {
  if (bits_ == 0) return 0;
  while (left_ == 0) begin_run();
  --left_;
  if (!packed_) return value_;
  uint64_t word = 0;
  const auto first = at_ + static_cast<size_t>(bit_ / 8);
  const size_t count = std::min<size_t>(8, bytes_.size() - first);
  for (size_t i = 0; i < std::min<size_t>(count, 5); ++i)
    word |= std::to_integer<uint64_t>(bytes_[first + i]) << (8 * i);
  const auto out = static_cast<uint32_t>(word >> (bit_ % 8) & ((uint64_t{1} << bits_) - 1));
  bit_ += static_cast<uint64_t>(bits_);
  if (left_ == 0) at_ += packed_bytes_;
  return out;
}

void RunDecoder::begin_run() {
  uint64_t head = 0;
  for (int shift = 0;; shift += 7) {
    if (at_ == bytes_.size() || shift > 28) fail();
    const auto byte = std::to_integer<uint64_t>(bytes_[at_++]);
    head |= (byte & 127) << shift;
    if (byte < 128) break;
  }
  packed_ = head & 1;
  if (packed_) {
    // Numbers come in groups of eight; bytes of the last group may be left out if no number needs them.
    left_ = (head >> 1) * 8;
    const uint64_t bytes = (head >> 1) * static_cast<uint64_t>(bits_), rest = bytes_.size() - at_;
    if (bytes > rest) left_ = rest * 8 / static_cast<uint64_t>(bits_);
    if (left_ == 0) fail();
    packed_bytes_ = static_cast<size_t>(std::min(bytes, rest));
    bit_ = 0;
    return;
  }
  left_ = head >> 1;
  const auto width = static_cast<size_t>(ceil_div(bits_, 8));
  if (left_ == 0 || bytes_.size() - at_ < width) fail();
  value_ = 0;
  for (size_t i = 0; i < width; ++i) value_ |= std::to_integer<uint32_t>(bytes_[at_++]) << (8 * i);
}

void RunDecoder::fail() const { fail_short(*place_); }

ParquetScalar PlainDecoder::next() {
  ParquetScalar out;
  switch (type_) {
    case ParquetType::Boolean:
      if (at_ == bytes_.size()) fail_short(*place_);
      out.bits = std::to_integer<uint64_t>(bytes_[at_]) >> bit_ & 1;
      if (++bit_ == 8) {
        bit_ = 0;
        ++at_;
      }
      break;
    case ParquetType::Int32:
    case ParquetType::Float:
      out.bits = load<uint32_t>(take(4).data());
      break;
    case ParquetType::Int64:
    case ParquetType::Double:
      out.bits = load<uint64_t>(take(8).data());
      break;
    default: {
      const auto text = take(load<uint32_t>(take(4).data()));
      out.text = {reinterpret_cast<const char*>(text.data()), text.size()};
    }
  }
  return out;
}

std::span<const std::byte> PlainDecoder::take(uint64_t count) {
  if (count > bytes_.size() - at_) fail_short(*place_);
  const auto out = bytes_.subspan(at_, static_cast<size_t>(count));
  at_ += static_cast<size_t>(count);
  return out;
}

}  // namespace snug
