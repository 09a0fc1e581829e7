// Resized pixels are Pillow's.
#include <gtest/gtest.h>

#include <map>

#include "image/resize.h"
#include "image_fixture.h"

namespace snug {
namespace {

TEST(Resize, PixelsArePillows) {
  std::map<std::string, Image> images;
  const auto cases = stored_json("image/resized.json");
  for (const auto& expected : cases) {
    const std::string name = expected[0];
    if (!images.contains(name)) images[name] = stored_image(name);
    const Image out = resize(images[name], expected[1], expected[2], Resampling{expected[3].get<int>()});
    EXPECT_EQ(out.width, expected[1]);
    EXPECT_EQ(out.height, expected[2]);
    EXPECT_EQ(checksum(out), expected[4]) << expected.dump();
  }
  EXPECT_EQ(images.size(), 4u);
}

TEST(Resize, AnEqualSizeIsACopy) {
  const Image image = stored_image("noise.png");
  EXPECT_EQ(resize(image, image.width, image.height, Resampling::Bicubic).rgb, image.rgb);
}

// Weights of one output sum to one in fixed point, near enough that a constant stays one.
TEST(Resize, AConstantStaysOne) {
  for (const int value : {0, 1, 127, 254, 255}) {
    Image image{.width = 37, .height = 23, .rgb = {}};
    image.rgb.assign(37 * 23 * 3, static_cast<uint8_t>(value));
    for (const Resampling resampling : {Resampling::Lanczos, Resampling::Bilinear, Resampling::Bicubic}) {
      const Image out = resize(image, 11, 71, resampling);
      EXPECT_EQ(out.rgb, std::vector<uint8_t>(11 * 71 * 3, static_cast<uint8_t>(value)));
    }
  }
}

}  // namespace
}  // namespace snug
