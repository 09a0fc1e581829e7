// A preprocessor_config.json: anything but a UserError, or a plan for pictures of any shape that is then kept to, is a
// fault.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "image/processor.h"

namespace {

constexpr int64_t kSizes[][2] = {{1, 1}, {30, 200}, {1920, 1080}, {1, 9000}, {500, 3}, {13000, 13000}};

void process(const snug::ImageProcessor& processor, int64_t width, int64_t height) {
  const snug::ImagePlan plan = snug::plan_image(processor, width, height, "x");
  if (plan.patches < 1 || plan.tokens < 0) std::abort();
  int64_t pixels = width * height;
  for (const snug::ImageView& view : plan.views) {
    if (view.left + view.width > view.resized_width || view.top + view.height > view.resized_height) std::abort();
    pixels = std::max(pixels, view.resized_width * view.resized_height);
  }
  if (pixels > 1 << 18 || plan.patches * processor.row_size() > 1 << 21) return;
  snug::Image image{.width = width, .height = height, .rgb = {}};
  image.rgb.resize(static_cast<size_t>(width * height * 3), 77);
  std::vector<float> rows(static_cast<size_t>(plan.patches * processor.row_size()));
  snug::write_patches(processor, image, rows);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  for (const auto& [width, height] : kSizes) {
    try {
      process(snug::parse_image_processor(json, "x", 96), width, height);
    } catch (const snug::UserError&) {
    }
  }
  return 0;
}
