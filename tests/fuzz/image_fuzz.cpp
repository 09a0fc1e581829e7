// An image file, or its base64: anything but a UserError, or headers that agree with the pixels, is a fault.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "base/error.h"
#include "image/data_url.h"
#include "image/decode.h"

namespace {

// The same bytes as the base64 of a data URL.
void read_data_url(std::string_view text) {
  try {
    const std::string bytes = snug::bytes_of_data_url("data:;base64," + std::string(text), "x");
    if (bytes.size() > text.size() / 4 * 3 + 2) std::abort();
  } catch (const snug::UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMostPixels = 1 << 18;
  read_data_url({reinterpret_cast<const char*>(data), size});
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
