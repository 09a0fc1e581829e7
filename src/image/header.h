// Reads what an image file is and how large, without decoding it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "image/image_bytes.h"

namespace snug {

enum class ImageFormat { Jpeg, Png, WebP };

// Pillow refuses images of more pixels as decompression bombs.
constexpr int64_t kMostImagePixels = 178'956'970;

// No compressed image that Pillow reads is larger.
constexpr uint64_t kMostImageBytes = 1ull << 31;

struct ImageHeader {
  ImageFormat format = ImageFormat::Jpeg;
  int64_t width = 0, height = 0;  // as stored: a picture of orientation 5 to 8 is shown with the sides swapped
  int channels = 0;               // 1 or 2: grey, with alpha; 3 or 4: colours (also of a palette), with alpha or black
  int orientation = 1;            // 1 to 8 as in EXIF

  int64_t shown_width() const { return orientation >= 5 ? height : width; }
  int64_t shown_height() const { return orientation >= 5 ? width : height; }
};

// Return what the headers say; of a file only these are read. Throw UserError, named by `source`, for another kind of
// file (which is named), an animation, a frame that is not read (12 bits, lossless JPEG), damaged or cut headers, more
// than `max_pixels` pixels, and more than kMostImageBytes.
ImageHeader read_image_header(ImageBytes& bytes, int64_t max_pixels = kMostImagePixels);
ImageHeader read_image_header(const std::filesystem::path& path, std::string_view source,
                              int64_t max_pixels = kMostImagePixels);

// Opens a file. Throws UserError that begins with `source`.
File open_image(const std::filesystem::path& path, std::string_view source);

// The readers of each format, for bytes that begin as its files do.
ImageHeader read_jpeg_header(ImageBytes& bytes);
ImageHeader read_png_header(ImageBytes& bytes);
ImageHeader read_webp_header(ImageBytes& bytes);

}  // namespace snug
