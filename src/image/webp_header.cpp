// WebP: RFC 9649.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "image/header.h"
#include "image/orientation.h"

namespace snug {

namespace {

constexpr uint64_t kRiffHeader = 12, kChunkHeader = 8;
constexpr unsigned kAnimationFlag = 0x02, kAlphaFlag = 0x10;

// Describes a chunk's data.
struct Chunk {
  std::string type;
  uint64_t begin = 0, bytes = 0;
};

// Reads the size of a lossy image from its first frame's header.
void read_lossy(ImageBytes& bytes, const Chunk& chunk, ImageHeader& header) {
  const std::span<const uint8_t> data = bytes.at(chunk.begin, 10, "its frame header");
  if ((data[0] & 1) != 0 || data[3] != 0x9d || data[4] != 0x01 || data[5] != 0x2a)
    user_error("{}: the frame header is damaged, expected that of a WebP image", bytes.source());
  header.width = static_cast<int64_t>(little_endian(data, 6, 2) & 0x3fff);
  header.height = static_cast<int64_t>(little_endian(data, 8, 2) & 0x3fff);
  header.channels = 3;
}

void read_lossless(ImageBytes& bytes, const Chunk& chunk, ImageHeader& header) {
  const std::span<const uint8_t> data = bytes.at(chunk.begin, 5, "its frame header");
  const uint64_t bits = little_endian(data, 1, 4);
  if (data[0] != 0x2f || bits >> 29 != 0)
    user_error("{}: the frame header is damaged, expected that of a lossless WebP image", bytes.source());
  header.width = static_cast<int64_t>(bits & 0x3fff) + 1;
  header.height = static_cast<int64_t>(bits >> 14 & 0x3fff) + 1;
  header.channels = (bits >> 28 & 1) != 0 ? 4 : 3;
}

void read_extended(ImageBytes& bytes, const Chunk& chunk, ImageHeader& header) {
  const std::span<const uint8_t> data = bytes.at(chunk.begin, 10, "its header");
  if ((data[0] & kAnimationFlag) != 0)
    user_error("{}: found an animated WebP, expected one image: save a frame of it", bytes.source());
  header.width = static_cast<int64_t>(little_endian(data, 4, 3)) + 1;
  header.height = static_cast<int64_t>(little_endian(data, 7, 3)) + 1;
  header.channels = (data[0] & kAlphaFlag) != 0 ? 4 : 3;
}

}  // namespace

ImageHeader read_webp_header(ImageBytes& bytes) {
  ImageHeader header{.format = ImageFormat::WebP};
  ImageHeader canvas;
  OrientationTags tags;
  const uint64_t end = 8 + little_endian(bytes.at(4, 4, "its header"), 0, 4);
  if (end > bytes.size()) bytes.cut_short("its pixels");
  for (uint64_t at = kRiffHeader; at + kChunkHeader <= end;) {
    const std::span<const uint8_t> head = bytes.at(at, kChunkHeader, "a chunk's header");
    const Chunk chunk{.type = std::string(head.begin(), head.begin() + 4),
                      .begin = at + kChunkHeader,
                      .bytes = little_endian(head, 4, 4)};
    if (chunk.bytes > end - chunk.begin) bytes.cut_short("its chunk '" + chunk.type + "'");
    const bool first = at == kRiffHeader, found = header.channels != 0;
    if (chunk.type == "VP8X" && first) {
      read_extended(bytes, chunk, canvas);
    } else if (chunk.type == "VP8 " && !found) {
      read_lossy(bytes, chunk, header);
    } else if (chunk.type == "VP8L" && !found) {
      read_lossless(bytes, chunk, header);
    } else if (chunk.type == "EXIF" && tags.exif.empty()) {
      const std::span<const uint8_t> data = bytes.up_to(chunk.begin, std::min(chunk.bytes, kMostMetadata));
      tags.exif.assign(data.begin(), data.end());
    } else if (chunk.type == "XMP " && tags.xmp.empty()) {
      const std::span<const uint8_t> data = bytes.up_to(chunk.begin, std::min(chunk.bytes, kMostMetadata));
      tags.xmp.assign(data.begin(), data.end());
    }
    at = chunk.begin + chunk.bytes + chunk.bytes % 2;
  }
  if (header.channels == 0) user_error("{}: found no pixels (no VP8 chunk), expected an image", bytes.source());
  if (canvas.channels != 0) {
    if (canvas.width != header.width || canvas.height != header.height)
      user_error("{}: found {} x {} pixels, expected {} x {} as its header says", bytes.source(), header.width,
                 header.height, canvas.width, canvas.height);
    header.channels = std::max(header.channels, canvas.channels);
  }
  header.orientation = tags.orientation();
  return header;
}

}  // namespace snug
