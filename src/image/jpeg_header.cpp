// JPEG: ITU-T T.81, annex B; EXIF and XMP in APP1 segments.
#include <span>
#include <string_view>

#include "base/error.h"
#include "image/header.h"
#include "image/orientation.h"

namespace snug {

namespace {

// Markers, behind a byte 0xff. Frames are 0xc0 to 0xcf but for three.
constexpr uint8_t kTem = 0x01, kStartOfFrame = 0xc0, kHuffmanTables = 0xc4, kExtension = 0xc8,
                  kArithmeticConditions = 0xcc, kRestart0 = 0xd0, kStartOfImage = 0xd8, kEndOfImage = 0xd9,
                  kStartOfScan = 0xda, kApp1 = 0xe1;

// Bound what is read of a file: segments of metadata are skipped by their length, bytes between segments are read.
constexpr int kMostSegments = 4096;
constexpr uint64_t kMostStray = 64 << 10;

bool is_frame(uint8_t marker) {
  return (marker & 0xf0) == kStartOfFrame && marker != kHuffmanTables && marker != kExtension &&
         marker != kArithmeticConditions;
}

bool stands_alone(uint8_t marker) {
  return marker == kTem || marker == kExtension || (marker >= kRestart0 && marker <= kStartOfImage);
}

// Says why a kind of frame is not read; null for baseline, extended and progressive ones.
const char* unread_frame(uint8_t marker) {
  switch (marker & 0x0f) {
    case 0x0:
    case 0x1:
    case 0x2:
    case 0x9:
    case 0xa:
      return nullptr;
    case 0x3:
    case 0xb:
      return "lossless JPEG";
    default:
      return "hierarchical JPEG";
  }
}

void read_frame(ImageBytes& bytes, uint8_t marker, std::span<const uint8_t> segment, ImageHeader& header) {
  if (segment.size() < 6) user_error("{}: the frame header has {} bytes, expected 8", bytes.source(), segment.size());
  if (header.channels != 0) user_error("{}: found two frame headers, expected one image", bytes.source());
  if (const char* name = unread_frame(marker))
    user_error("{}: found {}, expected baseline or progressive: convert it", bytes.source(), name);
  if (segment[0] != 8) user_error("{}: found {} bits a channel, expected 8: convert it", bytes.source(), segment[0]);
  header.height = static_cast<int64_t>(big_endian(segment, 1, 2));
  header.width = static_cast<int64_t>(big_endian(segment, 3, 2));
  header.channels = segment[5];
  if (header.channels != 1 && header.channels != 3 && header.channels != 4)
    user_error("{}: found {} channels, expected 1 (grey), 3 (colours) or 4 (CMYK)", bytes.source(), header.channels);
}

void read_app1(std::span<const uint8_t> segment, OrientationTags& tags) {
  constexpr std::string_view kExif("Exif\0\0", 6), kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
  const std::string_view text(reinterpret_cast<const char*>(segment.data()), segment.size());
  if (text.starts_with(kExif)) {
    // A long block goes on in further segments.
    if (tags.exif.size() < kMostMetadata)
      tags.exif.insert(tags.exif.end(), segment.begin() + static_cast<ptrdiff_t>(kExif.size()), segment.end());
  } else if (text.starts_with(kXmp)) {
    tags.xmp = text.substr(kXmp.size());
  }
}

}  // namespace

ImageHeader read_jpeg_header(ImageBytes& bytes) {
  ImageHeader header{.format = ImageFormat::Jpeg};
  OrientationTags tags;
  uint64_t at = 2, stray = 0;
  for (int segments = 0;;) {
    if (stray > kMostStray)
      user_error("{}: found more than {} bytes that are of no segment, expected a frame header: the file is damaged",
                 bytes.source(), kMostStray);
    // A marker is 0xff, as often as one likes, and a byte that is neither 0xff nor 0; what lies before it is passed
    // over.
    const std::span<const uint8_t> two = bytes.up_to(at, 2);
    if (two.empty() || (two[0] == 0xff && two.size() < 2)) bytes.cut_short("its headers");
    if (two[0] != 0xff || two[1] == 0xff) {
      at++, stray++;
      continue;
    }
    const uint8_t marker = two[1];
    at += 2;
    if (marker == 0 || stands_alone(marker)) {
      stray += 2;
      continue;
    }
    if (marker == kEndOfImage || marker == kStartOfScan) break;
    if (++segments > kMostSegments)
      user_error("{}: found no frame header in its first {} segments, expected one", bytes.source(), kMostSegments);
    const uint64_t length = big_endian(bytes.at(at, 2, "its headers"), 0, 2);
    if (length < 2) user_error("{}: a segment has length {}, expected at least 2", bytes.source(), length);
    if (is_frame(marker)) {
      read_frame(bytes, marker, bytes.at(at + 2, length - 2, "its frame header"), header);
    } else if (marker == kApp1) {
      read_app1(bytes.at(at + 2, length - 2, "its metadata"), tags);
    }
    at += length;
  }
  if (header.channels == 0) user_error("{}: found no frame header, expected one before the pixels", bytes.source());
  header.orientation = tags.orientation();
  return header;
}

}  // namespace snug
