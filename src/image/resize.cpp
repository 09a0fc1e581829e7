#include "image/resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace snug {

namespace {

constexpr int kFractionBits = 22;

double bilinear(double x) { return std::max(1.0 - std::abs(x), 0.0); }

// Keys' cubic convolution with a = -1/2.
double bicubic(double x) {
  x = std::abs(x);
  if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0; }

struct Kernel {
  double (*weight)(double);
  double support;  // it is zero farther than that from its middle
};

Kernel kernel_of(Resampling resampling) {
  switch (resampling) {
    case Resampling::Lanczos:
      return {lanczos, 3.0};
    case Resampling::Bilinear:
      return {bilinear, 1.0};
    case Resampling::Bicubic:
      return {bicubic, 2.0};
  }
  internal_error("a resampling of number {}", static_cast<int>(resampling));
}

// Says which inputs each output is a sum of, in one direction.
struct Taps {
  struct Range {
    int64_t first, count;
  };
  std::vector<Range> ranges;     // by output
  std::vector<int32_t> weights;  // `most` for each output, in fixed point
  int64_t most;

  const int32_t* of(int64_t output) const { return weights.data() + output * most; }
};

// Returns the taps of one direction. The kernel is widened where the image shrinks, so that all inputs count; at the
// edges, where it is cut, weights are scaled to sum to one.
Taps taps(int64_t in, int64_t out, Resampling resampling) {
  const Kernel kernel = kernel_of(resampling);
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double stretch = std::max(scale, 1.0), support = kernel.support * stretch;
  Taps taps{.ranges = {}, .weights = {}, .most = 2 * static_cast<int64_t>(std::ceil(support)) + 1};
  taps.ranges.reserve(static_cast<size_t>(out));
  taps.weights.resize(static_cast<size_t>(out * taps.most));
  std::vector<double> exact(static_cast<size_t>(taps.most));
  for (int64_t i = 0; i < out; i++) {
    const double center = (static_cast<double>(i) + 0.5) * scale, per_input = 1.0 / stretch;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t end = std::min(static_cast<int64_t>(center + support + 0.5), in);
    double sum = 0.0;
    for (int64_t k = 0; k < end - first; k++) {
      exact[static_cast<size_t>(k)] = kernel.weight((static_cast<double>(k + first) - center + 0.5) * per_input);
      sum += exact[static_cast<size_t>(k)];
    }
    int32_t* weights = taps.weights.data() + i * taps.most;
    for (int64_t k = 0; k < end - first; k++) {
      const double weight = sum != 0.0 ? exact[static_cast<size_t>(k)] / sum : exact[static_cast<size_t>(k)];
      weights[k] = static_cast<int32_t>(weight * (1 << kFractionBits) + (weight < 0 ? -0.5 : 0.5));
    }
    taps.ranges.push_back({first, end - first});
  }
  return taps;
}

uint8_t byte_of(int32_t fixed) { return static_cast<uint8_t>(std::clamp(fixed >> kFractionBits, 0, 255)); }

constexpr int32_t kHalf = 1 << (kFractionBits - 1);

Image resize_rows(const Image& image, int64_t width, Resampling resampling) {
  const Taps columns = taps(image.width, width, resampling);
  Image out{.width = width, .height = image.height, .rgb = {}};
  out.rgb.resize(static_cast<size_t>(width * image.height * 3));
  uint8_t* to = out.rgb.data();
  for (int64_t y = 0; y < image.height; y++) {
    const uint8_t* row = image.rgb.data() + y * image.width * 3;
    for (int64_t x = 0; x < width; x++, to += 3) {
      const auto [first, count] = columns.ranges[static_cast<size_t>(x)];
      const int32_t* weights = columns.of(x);
      const uint8_t* from = row + first * 3;
      int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (int64_t k = 0; k < count; k++, from += 3) {
        red += from[0] * weights[k];
        green += from[1] * weights[k];
        blue += from[2] * weights[k];
      }
      to[0] = byte_of(red), to[1] = byte_of(green), to[2] = byte_of(blue);
    }
  }
  return out;
}

Image resize_columns(const Image& image, int64_t height, Resampling resampling) {
  const Taps rows = taps(image.height, height, resampling);
  const int64_t row_bytes = image.width * 3;
  Image out{.width = image.width, .height = height, .rgb = {}};
  out.rgb.resize(static_cast<size_t>(row_bytes * height));
  std::vector<int32_t> sums(static_cast<size_t>(row_bytes));
  for (int64_t y = 0; y < height; y++) {
    const auto [first, count] = rows.ranges[static_cast<size_t>(y)];
    const int32_t* weights = rows.of(y);
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int64_t k = 0; k < count; k++) {
      const uint8_t* from = image.rgb.data() + (first + k) * row_bytes;
      const int32_t weight = weights[k];
      for (int64_t i = 0; i < row_bytes; i++) sums[static_cast<size_t>(i)] += from[i] * weight;
    }
    uint8_t* to = out.rgb.data() + y * row_bytes;
    for (int64_t i = 0; i < row_bytes; i++) to[i] = byte_of(sums[static_cast<size_t>(i)]);
  }
  return out;
}

}  // namespace

Image resize(const Image& image, int64_t width, int64_t height, Resampling resampling) {
  check(image.width > 0 && image.height > 0 && width > 0 && height > 0, "resizing {} x {} to {} x {}", image.width,
        image.height, width, height);
  if (width == image.width) return height == image.height ? image : resize_columns(image, height, resampling);
  Image rows = resize_rows(image, width, resampling);
  return height == rows.height ? rows : resize_columns(rows, height, resampling);
}

}  // namespace snug
