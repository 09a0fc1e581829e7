// An image file: anything but a UserError, or headers that agree with the pixels, is a fault.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "image/decode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMostPixels = 1 << 18;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    snug::ImageBytes ranges(bytes, "x");
    const snug::ImageHeader header = snug::read_image_header(ranges, kMostPixels);
    const snug::Image image = snug::decode_image(bytes, "x", kMostPixels).image;
    if (image.width != header.shown_width() || image.height != header.shown_height()) std::abort();
  } catch (const snug::UserError&) {
  }
  return 0;
}
