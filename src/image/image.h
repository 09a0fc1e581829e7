// Holds decoded pixels.
#pragma once

#include <cstdint>
#include <vector>

namespace snug {

struct Image {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;  // rows from the top without gaps, three bytes a pixel
};

}  // namespace snug
