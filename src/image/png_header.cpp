// PNG: https://www.w3.org/TR/png-3/
#include <zlib.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "image/header.h"
#include "image/orientation.h"

namespace snug {

namespace {

constexpr uint64_t kSignatureBytes = 8, kChunkFrame = 12;  // a chunk's length, type and checksum

std::string_view as_text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns the first kMostMetadata bytes of what a zlib stream holds; empty for a damaged one.
std::string inflated(std::string_view packed) {
  std::string text(kMostMetadata, '\0');
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return {};
  // zlib does not write to what it reads, though its type allows it.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const int result = inflate(&stream, Z_FINISH);
  text.resize(text.size() - stream.avail_out);
  inflateEnd(&stream);
  const bool whole = result == Z_STREAM_END || (result == Z_BUF_ERROR && text.size() == kMostMetadata);
  return whole ? text : std::string();
}

// Takes a text off the front of another, up to and without a zero byte; returns whether there is one.
bool take_field(std::string_view& rest, std::string_view& field) {
  const size_t end = rest.find('\0');
  if (end == rest.npos) return false;
  field = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return true;
}

// Holds what the text chunks say; an eXIf chunk counts before a raw profile.
struct PngTags {
  OrientationTags tags;
  std::vector<uint8_t> raw_profile;

  void read(std::string_view type, std::string_view data) {
    std::string_view rest = data, key, ignored;
    if (type == "eXIf") {
      tags.exif.assign(data.begin(), data.end());
    } else if (type == "tEXt" && take_field(rest, key) && key == kRawProfile) {
      raw_profile = raw_profile_bytes(rest);
    } else if (type == "zTXt" && take_field(rest, key) && key == kRawProfile && rest.starts_with('\0')) {
      raw_profile = raw_profile_bytes(inflated(rest.substr(1)));
    } else if (type == "iTXt" && take_field(rest, key) && key == "XML:com.adobe.xmp" && rest.size() >= 2) {
      const bool packed = rest[0] != 0;
      rest.remove_prefix(2);
      if (take_field(rest, ignored) && take_field(rest, ignored))
        tags.xmp = packed ? inflated(rest) : std::string(rest);
    }
  }
  int orientation() {
    if (tags.exif.empty()) tags.exif = raw_profile;
    return tags.orientation();
  }

  static constexpr std::string_view kRawProfile = "Raw profile type exif";
};

int channels_of(ImageBytes& bytes, int depth, int colour) {
  const bool palette_depth = depth == 1 || depth == 2 || depth == 4 || depth == 8;
  const bool deep = depth == 8 || depth == 16;
  if (colour == 0 && (palette_depth || deep)) return 1;
  if (colour == 2 && deep) return 3;
  if (colour == 3 && palette_depth) return 3;
  if (colour == 4 && deep) return 2;
  if (colour == 6 && deep) return 4;
  user_error("{}: found {} bits and colour type {}, which PNG does not have", bytes.source(), depth, colour);
}

}  // namespace

ImageHeader read_png_header(ImageBytes& bytes) {
  ImageHeader header{.format = ImageFormat::Png};
  PngTags tags;
  bool pixels = false;
  for (uint64_t at = kSignatureBytes;;) {
    const std::span<const uint8_t> head = bytes.at(at, 8, "a chunk's header");
    const uint64_t length = big_endian(head, 0, 4);
    const std::string type(as_text(head.subspan(4, 4)));
    if (!bytes.has(at, length + kChunkFrame)) bytes.cut_short("its chunk " + (type == "IDAT" ? "of pixels" : type));
    if (at == kSignatureBytes) {
      if (type != "IHDR" || length != 13)
        user_error("{}: the first chunk is '{}' of {} bytes, expected 'IHDR' of 13", bytes.source(), type, length);
      const std::span<const uint8_t> data = bytes.at(at + 8, length, "its header");
      header.width = static_cast<int64_t>(big_endian(data, 0, 4));
      header.height = static_cast<int64_t>(big_endian(data, 4, 4));
      header.channels = channels_of(bytes, data[8], data[9]);
    } else if (type == "acTL" && length >= 4 && big_endian(bytes.at(at + 8, 4, "its frames"), 0, 4) > 1) {
      user_error("{}: found an animated PNG, expected one image: save a frame of it", bytes.source());
    } else if (type == "eXIf" || type == "tEXt" || type == "zTXt" || type == "iTXt") {
      tags.read(type, as_text(bytes.up_to(at + 8, std::min(length, kMostMetadata))));
    }
    pixels = pixels || type == "IDAT";
    if (type == "IEND") break;
    at += length + kChunkFrame;
  }
  if (!pixels) user_error("{}: found no pixels (no IDAT chunk), expected an image", bytes.source());
  header.orientation = tags.orientation();
  return header;
}

}  // namespace snug
