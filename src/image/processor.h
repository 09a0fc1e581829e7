// Turns a picture into what a vision tower reads: rows of pixels, one for each patch.
//
// A processor is data. What families differ in is how they cut a picture into views and how large these are (`sizing`),
// and in which order the patches of a view come; resizing, normalisation and the rest are common. The reference is what
// transformers 5.17 computes with Pillow 12 ("...ImageProcessorPil"; of MiniCPM-Llama3-V 2.5 and OmniLMM the model's
// own code, which is Pillow's too), bit for bit, as models were trained on such pixels. Where torchvision is installed
// transformers takes that instead: it rounds otherwise, which is a level or two in 0.3 to 0.5 % of Qwen's numbers.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "format/minicpm_config.h"
#include "image/image.h"
#include "image/resize.h"

namespace snug {

// One view, of nearly the picture's shape and with a number of pixels within bounds (Qwen2-VL, Qwen2.5-VL).
struct BoundedPixels {
  int64_t min_pixels = 56 * 56, max_pixels = 28 * 28 * 1280;
};

// One view of a fixed size; the shape of the picture is lost (OmniLMM).
struct FixedSize {
  int64_t width = 0, height = 0;
};

// An overview of about resolution^2 pixels, and, of larger pictures, a grid of slices of about as many each
// (MiniCPM-Llama3-V 2.5).
using OverviewAndSlices = SliceConfig;

struct ImageProcessor {
  std::variant<BoundedPixels, FixedSize, OverviewAndSlices> sizing{};
  Resampling resampling = Resampling::Bicubic;
  int64_t patch = 14;                // pixels a side
  int64_t merge = 1;                 // patches a side that become one token, and whose rows follow each other
  int64_t frames = 1;                // how often a patch's pixels stand in its row: a picture is a film of equal frames
  BoundedPixels video_pixels{0, 0};  // of a frame of a video; at most 0 where the model takes no videos
  double factor = 1.0 / 255;
  std::array<double, 3> mean{}, deviation{1, 1, 1};  // of red, green and blue, times `factor`
  // Tokens that the model makes of a view (by queries or by pooling); 0 where they are the merged patches.
  int64_t view_tokens = 0;

  int64_t row_size() const { return 3 * frames * patch * patch; }
  bool takes_videos() const { return video_pixels.max_pixels > 0; }
};

// Returns the processor of a video's frames, of which as many as a row has are one picture.
ImageProcessor frame_processor(const ImageProcessor& processor);

// Describes one view: the picture is resized, and of that a rectangle is taken.
struct ImageView {
  int64_t resized_width = 0, resized_height = 0;
  int64_t left = 0, top = 0, width = 0, height = 0;
  int64_t rows = 0, columns = 0;  // patches
  bool operator==(const ImageView&) const = default;
};

// Describes what becomes of a picture of a size.
struct ImagePlan {
  std::vector<ImageView> views;               // the overview first, then slices row by row
  int64_t slice_columns = 0, slice_rows = 0;  // 0 where the picture is not sliced
  int64_t patches = 0, tokens = 0;            // of all views
};

// Returns what becomes of an upright picture of width x height pixels. Throws UserError, named by `source`, for a shape
// that the model does not take.
ImagePlan plan_image(const ImageProcessor& processor, int64_t width, int64_t height, std::string_view source);

// Returns the tokens that a view takes.
int64_t tokens_of_view(const ImageProcessor& processor, const ImageView& view);

// Fills patches * row_size() numbers: the views' rows, one after the other, each in the order red, green, blue; frames;
// lines; columns. Lines of patches go from left to right, or, with `merge`, from square to square of merge x merge.
// Of a row's frames those before `first_frame` are left as they are: where frames differ, each is written from its own
// number on, so that the last fills the rest.
void write_patches(const ImageProcessor& processor, const Image& image, std::span<float> out, int64_t first_frame = 0);

// Return the processors of models whose files need not say how they process images. `view_tokens` is the number of
// their resampler's queries.
ImageProcessor minicpm_processor(int64_t max_slices, int64_t view_tokens);
ImageProcessor omnilmm_processor(int64_t side, int64_t view_tokens);

// Returns the processor of a preprocessor_config.json, or of the part "image_processor" of a processor_config.json.
// `view_tokens` is as the model's config.json has it, for a family whose tokens do not follow from its patches. Throws
// UserError for what is not supported, and for keys that it does not know, which might change pixels.
ImageProcessor parse_image_processor(std::string_view json, std::string_view source, int64_t view_tokens);

// Returns the bounds of a video's frames in a video_preprocessor_config.json, in the part "video_processor" of a
// processor_config.json, or, as transformers 5.17 falls back to it, in a preprocessor_config.json. Throws UserError as
// above, and where frames are processed otherwise than the images of `processor` but for their size.
BoundedPixels parse_video_pixels(std::string_view json, std::string_view source, const ImageProcessor& processor);

}  // namespace snug
