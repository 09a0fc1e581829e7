#include "image/decode.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "image/orientation.h"

namespace snug {

namespace {

std::string decode_pixels(std::span<const std::byte> bytes, std::string_view source, const ImageHeader& header,
                          Image& image) {
  switch (header.format) {
    case ImageFormat::Jpeg:
      return decode_jpeg(bytes, source, header, image);
    case ImageFormat::Png:
      return decode_png(bytes, source, header, image);
    case ImageFormat::WebP:
      return decode_webp(bytes, source, header, image);
  }
  internal_error("an image of format {}", static_cast<int>(header.format));
}

}  // namespace

DecodedImage decode_image(std::span<const std::byte> bytes, std::string_view source, int64_t max_pixels) {
  ImageBytes ranges(bytes, source);
  const ImageHeader header = read_image_header(ranges, max_pixels);
  Image image{.width = header.width, .height = header.height, .rgb = {}};
  image.rgb.resize(static_cast<size_t>(header.width * header.height * 3));
  std::string warning = decode_pixels(bytes, source, header, image);
  return {.image = upright(std::move(image), header.orientation), .warning = std::move(warning)};
}

DecodedImage decode_image(const std::filesystem::path& path, std::string_view source, int64_t max_pixels) {
  const File file = open_image(path, source);
  ImageBytes ranges(file, source);
  // A file that is no image, or a bomb, is refused by its header, before the rest is read.
  read_image_header(ranges, max_pixels);
  std::vector<std::byte> bytes(file.size());
  file.read(0, bytes);
  return decode_image(bytes, source, max_pixels);
}

}  // namespace snug
