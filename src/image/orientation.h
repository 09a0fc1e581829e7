// Finds how a picture is to be turned, in the metadata of its file.
//
// EXIF is a TIFF directory (TIFF 6.0; tag 274 in CIPA DC-008), XMP is XML. What counts where several say it is Pillow's
// rule (Image.getexif): EXIF if it has the tag, else XMP.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "image/image.h"

namespace snug {

// Collects an image file's metadata, of which only as much is looked at as kMostMetadata; the tag lies near its start.
constexpr uint64_t kMostMetadata = 1 << 20;
struct OrientationTags {
  std::vector<uint8_t> exif;
  std::string xmp;

  // Returns 1 to 8 as in EXIF; 1, upright, where nothing says more or what says it is damaged.
  int orientation() const;
};

// Returns the bytes of a PNG text "Raw profile type exif": a blank line, a name, a length, lines of hexadecimal digits.
// Empty if it is not written so.
std::vector<uint8_t> raw_profile_bytes(std::string_view text);

// Returns the picture upright, as its orientation (1 to 8) says that it was stored.
Image upright(Image image, int orientation);

}  // namespace snug
