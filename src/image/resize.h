// Resamples pixels bit for bit as Pillow 12's Image.resize() does.
#pragma once

#include <cstdint>

#include "image/image.h"

namespace snug {

// The numbers are those of preprocessor_config.json ("resample"), which are Pillow's.
enum class Resampling { Lanczos = 1, Bilinear = 2, Bicubic = 3 };

// Returns the image in another size: rows first, then columns, each in fixed point with 22 bits behind the point, and
// bytes between the two. A direction that keeps its size is left as it is. (Pillow 13 takes columns first where that is
// less work, which rounds otherwise.)
Image resize(const Image& image, int64_t width, int64_t height, Resampling resampling);

}  // namespace snug
