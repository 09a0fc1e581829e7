// By libwebp.
#include <webp/decode.h>

#include <new>

#include "base/error.h"
#include "image/decode.h"

namespace snug {

namespace {

std::string_view words_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_BITSTREAM_ERROR:
      return "its bits are damaged";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "it uses what libwebp does not know";
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "the file ends inside its pixels";
    default:
      return "libwebp stops";
  }
}

}  // namespace

std::string decode_webp(std::span<const std::byte> bytes, std::string_view source, const ImageHeader& header,
                        Image& image) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPDecoderConfig config;
  check(WebPInitDecoderConfig(&config) != 0, "libwebp is of another version than its header");
  VP8StatusCode status = WebPGetFeatures(data, bytes.size(), &config.input);
  if (status == VP8_STATUS_OK) {
    if (config.input.width != header.width || config.input.height != header.height || config.input.has_animation != 0)
      user_error("{}: found {} x {} pixels, expected {} x {} as its header says", source, config.input.width,
                 config.input.height, header.width, header.height);
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {
        .rgba = image.rgb.data(), .stride = static_cast<int>(header.width * 3), .size = image.rgb.size()};
    status = WebPDecode(data, bytes.size(), &config);
    WebPFreeDecBuffer(&config.output);
  }
  if (status == VP8_STATUS_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status != VP8_STATUS_OK)
    user_error("{}: {} WebP file ({}), expected a whole image: copy or fetch it again", source, kCannotDecode,
               words_of(status));
  return {};
}

}  // namespace snug
