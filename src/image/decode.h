// Decodes image files to pixels, bit for bit as Pillow 12's ImageOps.exif_transpose() and convert("RGB") do, but for
// grey of 16 bits, of which the high byte is taken (Pillow clips at 255, which leaves white).
//
// Alpha is dropped, grey and palettes are expanded, of 16 bits the high byte counts, CMYK is taken as Adobe's inverted.
// Colour profiles are not applied. Refused, though Pillow reads them: animations, of which it takes the first frame,
// PNG files without their end or with a wrong checksum, and JPEG files of more than a hundred scans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "image/header.h"
#include "image/image.h"

namespace snug {

// Stands in the message on a file whose pixels are damaged.
inline constexpr std::string_view kCannotDecode = "cannot decode this";

struct DecodedImage {
  Image image;  // upright
  // What the decoder found amiss in a file of which it yet decoded every pixel, as Pillow does silently; else empty.
  std::string warning;
};

// Return the pixels of a whole file. Memory is taken only after the header has been checked against `max_pixels`. Throw
// UserError as read_image_header() does, and for pixels that are cut short or cannot be decoded; `source` names the
// image in messages. Throw std::bad_alloc where a decoder finds no memory.
DecodedImage decode_image(std::span<const std::byte> bytes, std::string_view source,
                          int64_t max_pixels = kMostImagePixels);
DecodedImage decode_image(const std::filesystem::path& path, std::string_view source,
                          int64_t max_pixels = kMostImagePixels);

// The decoders of each format, each for a file of which the header has been read: they fill `image`, of the stored
// size, and return what was amiss.
std::string decode_jpeg(std::span<const std::byte> bytes, std::string_view source, const ImageHeader& header,
                        Image& image);
std::string decode_png(std::span<const std::byte> bytes, std::string_view source, const ImageHeader& header,
                       Image& image);
std::string decode_webp(std::span<const std::byte> bytes, std::string_view source, const ImageHeader& header,
                        Image& image);

}  // namespace snug
