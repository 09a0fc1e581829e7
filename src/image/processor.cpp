#include "image/processor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace snug {

namespace {

// Rounds a half to even, as Python does.
int64_t nearest_multiple(double x, int64_t of) {
  return static_cast<int64_t>(std::nearbyint(x / static_cast<double>(of))) * of;
}

struct Size {
  int64_t width, height;
};

// Throws UserError for a picture that would grow to hundreds of times its pixels. The bound is Qwen's; MiniCPM has
// none.
void refuse_thin(Size size, std::string_view source) {
  constexpr int64_t kMostAspect = 200;
  if (std::max(size.width, size.height) > kMostAspect * std::min(size.width, size.height))
    user_error("{}: found {} x {} pixels, expected a long side of at most {} times the short one: crop it", source,
               size.width, size.height, kMostAspect);
}

ImageView whole(const ImageProcessor& processor, Size size) {
  return {.resized_width = size.width,
          .resized_height = size.height,
          .width = size.width,
          .height = size.height,
          .rows = size.height / processor.patch,
          .columns = size.width / processor.patch};
}

// Qwen's smart_resize. The orders of the operations are the reference's, as a quotient one bit off may round elsewhere.
Size bounded(const BoundedPixels& bounds, int64_t factor, int64_t width, int64_t height) {
  const auto down = [&](double side, double ratio) {
    return static_cast<int64_t>(std::floor(side / ratio / static_cast<double>(factor))) * factor;
  };
  const auto up = [&](double side, double ratio) {
    return static_cast<int64_t>(std::ceil(side * ratio / static_cast<double>(factor))) * factor;
  };
  const auto w = static_cast<double>(width), h = static_cast<double>(height);
  Size size{.width = nearest_multiple(w, factor), .height = nearest_multiple(h, factor)};
  if (size.width * size.height > bounds.max_pixels) {
    const double ratio = std::sqrt(w * h / static_cast<double>(bounds.max_pixels));
    size = {.width = std::max(down(w, ratio), factor), .height = std::max(down(h, ratio), factor)};
  } else if (size.width * size.height < bounds.min_pixels) {
    const double ratio = std::sqrt(static_cast<double>(bounds.min_pixels) / (w * h));
    size = {.width = up(w, ratio), .height = up(h, ratio)};
  }
  return size;
}

// Computes sizes of MiniCPM-Llama3-V 2.5 (slice_image in its code).
class Slicing {
 public:
  Slicing(const OverviewAndSlices& sizing, int64_t patch) : sizing_(sizing), patch_(patch) {}

  // Returns multiples of a patch near the shape: about resolution^2 pixels, or the shape itself if it has fewer and is
  // not to grow.
  Size fitted(double width, double height, bool grow) const {
    const auto side = static_cast<double>(sizing_.resolution);
    if (grow || width * height > side * side) {
      const double aspect = width / height;
      height = std::trunc(side / std::sqrt(aspect));
      width = std::trunc(height * aspect);
    }
    return {.width = multiple(width, patch_), .height = multiple(height, patch_)};
  }

  // Returns columns and rows of the grid whose shape, among those of about as many cells as there are resolution^2 in
  // the picture, is the most like the picture's; nothing of a small picture.
  Size grid(int64_t width, int64_t height) const {
    const double pixels = static_cast<double>(width * height);
    const double cells = std::ceil(pixels / static_cast<double>(sizing_.resolution * sizing_.resolution));
    const int64_t wanted = static_cast<int64_t>(std::min(cells, static_cast<double>(sizing_.max_slices)));
    if (wanted <= 1) return {0, 0};
    const double shape = std::log(static_cast<double>(width) / static_cast<double>(height));
    double least = std::numeric_limits<double>::infinity();
    Size best{1, 1};
    for (int64_t count = wanted - 1; count <= wanted + 1; count++) {
      if (count == 1 || count > sizing_.max_slices) continue;
      for (int64_t columns = 1; columns <= count; columns++) {
        if (count % columns != 0) continue;
        const int64_t rows = count / columns;
        const double error = std::abs(shape - std::log(static_cast<double>(columns) / static_cast<double>(rows)));
        if (error < least) least = error, best = {columns, rows};
      }
    }
    return best;
  }

  // Returns the size of one cell of a grid over the picture.
  Size cell(int64_t width, int64_t height, Size grid) const {
    const double cell_width = static_cast<double>(multiple(static_cast<double>(width), grid.width) / grid.width);
    const double cell_height = static_cast<double>(multiple(static_cast<double>(height), grid.height) / grid.height);
    return fitted(cell_width, cell_height, true);
  }

 private:
  static int64_t multiple(double x, int64_t of) { return std::max(nearest_multiple(x, of), of); }

  OverviewAndSlices sizing_;
  int64_t patch_;
};

void plan_views(const ImageProcessor& processor, const BoundedPixels& sizing, Size size, std::string_view source,
                ImagePlan& plan) {
  refuse_thin(size, source);
  plan.views = {whole(processor, bounded(sizing, processor.patch * processor.merge, size.width, size.height))};
}

void plan_views(const ImageProcessor& processor, const FixedSize& sizing, Size, std::string_view, ImagePlan& plan) {
  plan.views = {whole(processor, {sizing.width, sizing.height})};
}

void plan_views(const ImageProcessor& processor, const OverviewAndSlices& sizing, Size size, std::string_view source,
                ImagePlan& plan) {
  refuse_thin(size, source);
  const Slicing slicing(sizing, processor.patch);
  const Size grid = slicing.grid(size.width, size.height);
  const bool sliced = grid.width > 0;
  const auto w = static_cast<double>(size.width), h = static_cast<double>(size.height);
  plan.views = {whole(processor, slicing.fitted(w, h, !sliced))};
  if (!sliced) return;
  plan.slice_columns = grid.width;
  plan.slice_rows = grid.height;
  const Size cell = slicing.cell(size.width, size.height, grid);
  for (int64_t row = 0; row < grid.height; row++) {
    for (int64_t column = 0; column < grid.width; column++) {
      ImageView view = whole(processor, cell);
      view.resized_width = cell.width * grid.width;
      view.resized_height = cell.height * grid.height;
      view.left = column * cell.width;
      view.top = row * cell.height;
      plan.views.push_back(view);
    }
  }
}

// Holds what a byte of each colour becomes. Numbers are rounded to fp32 where the reference does.
struct PixelValues {
  float of[3][256];

  explicit PixelValues(const ImageProcessor& processor) {
    for (size_t c = 0; c < 3; c++) {
      const auto mean = static_cast<float>(processor.mean[c]), deviation = static_cast<float>(processor.deviation[c]);
      for (int v = 0; v < 256; v++) of[c][v] = (static_cast<float>(v * processor.factor) - mean) / deviation;
    }
  }
};

// Writes the row of the patch whose first pixel is given, from a frame on, and returns where the next one begins.
float* write_row(const ImageProcessor& processor, const PixelValues& values, const uint8_t* pixel, int64_t line_bytes,
                 int64_t first_frame, float* out) {
  const int64_t patch = processor.patch;
  for (int64_t c = 0; c < 3; c++) {
    out += first_frame * patch * patch;
    const float* frame = out;
    for (int64_t y = 0; y < patch; y++)
      for (int64_t x = 0; x < patch; x++) *out++ = values.of[c][pixel[y * line_bytes + x * 3 + c]];
    for (int64_t t = first_frame + 1; t < processor.frames; t++) out = std::copy(frame, frame + patch * patch, out);
  }
  return out;
}

float* write_view(const ImageProcessor& processor, const PixelValues& values, const Image& resized,
                  const ImageView& view, int64_t first_frame, float* out) {
  const int64_t merge = processor.merge, line_bytes = resized.width * 3;
  const auto patch_at = [&](int64_t row, int64_t column) {
    const int64_t x = view.left + column * processor.patch, y = view.top + row * processor.patch;
    return resized.rgb.data() + y * line_bytes + x * 3;
  };
  for (int64_t row = 0; row < view.rows; row += merge)
    for (int64_t column = 0; column < view.columns; column += merge)
      for (int64_t i = 0; i < merge * merge; i++)
        out = write_row(processor, values, patch_at(row + i / merge, column + i % merge), line_bytes, first_frame, out);
  return out;
}

}  // namespace

ImagePlan plan_image(const ImageProcessor& processor, int64_t width, int64_t height, std::string_view source) {
  check(width > 0 && height > 0, "an image of {} x {} pixels", width, height);
  ImagePlan plan;
  std::visit(
      [&](const auto& sizing) {
        plan_views(processor, sizing, {width, height}, source, plan);
      },
      processor.sizing);
  for (const ImageView& view : plan.views) {
    plan.patches += view.rows * view.columns;
    plan.tokens += tokens_of_view(processor, view);
  }
  return plan;
}

int64_t tokens_of_view(const ImageProcessor& processor, const ImageView& view) {
  if (processor.view_tokens > 0) return processor.view_tokens;
  return view.rows * view.columns / (processor.merge * processor.merge);
}

ImageProcessor frame_processor(const ImageProcessor& processor) {
  check(processor.takes_videos(), "frames of a video for a model that takes none");
  ImageProcessor frames = processor;
  frames.sizing = processor.video_pixels;
  return frames;
}

void write_patches(const ImageProcessor& processor, const Image& image, std::span<float> out, int64_t first_frame) {
  const ImagePlan plan = plan_image(processor, image.width, image.height, "the image");
  check(static_cast<int64_t>(out.size()) == plan.patches * processor.row_size(), "room for {} numbers, expected {}",
        out.size(), plan.patches * processor.row_size());
  check(0 <= first_frame && first_frame < processor.frames, "frame {} of {}", first_frame, processor.frames);
  const PixelValues values(processor);
  Image resized;
  float* to = out.data();
  for (const ImageView& view : plan.views) {
    if (resized.width != view.resized_width || resized.height != view.resized_height)
      resized = resize(image, view.resized_width, view.resized_height, processor.resampling);
    to = write_view(processor, values, resized, view, first_frame, to);
  }
}

ImageProcessor minicpm_processor(int64_t max_slices, int64_t view_tokens) {
  return {.sizing = OverviewAndSlices{.max_slices = max_slices},
          .mean = {0.5, 0.5, 0.5},
          .deviation = {0.5, 0.5, 0.5},
          .view_tokens = view_tokens};
}

ImageProcessor omnilmm_processor(int64_t side, int64_t view_tokens) {
  return {.sizing = FixedSize{.width = side, .height = side},
          .mean = {0.48145466, 0.4578275, 0.40821073},
          .deviation = {0.26862954, 0.26130258, 0.27577711},
          .view_tokens = view_tokens};
}

}  // namespace snug
