// Finds out what a model takes of images, and what the options change of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/options.h"
#include "data/images.h"
#include "format/prompt_format.h"
#include "format/tokenizer.h"

namespace snug {

// Returns what the model of the options takes: from config.json, by its model_type, and preprocessor_config.json, with
// image_min_pixels, image_max_pixels and max_slices, or, where these are not given, those with which the adapter was
// trained. Nothing for a model that takes none. Throws UserError for a tokenizer that lacks its tokens, and bounds of
// which the least is above the most; files of processors that are not there, or say different things, are noted in the
// result and refused where an image, or a video, needs them.
std::optional<ImageInput> image_input(const JobConfig& options, const Tokenizer& tokenizer);

// Returns how the options say that images are sized, or else the adapter's snug.json.
ImageSizes image_sizes(const JobConfig& options);
// Returns how a processor sizes them.
ImageSizes image_sizes(const ImageProcessor& processor);

// Returns lines on options of images that were asked for and that change nothing, as the model takes none (nothing) or
// sizes them by another rule, or as the data has none.
std::vector<std::string> image_options_without_effect(const JobConfig& options, const std::optional<ImageInput>& input,
                                                      bool found_images);

}  // namespace snug
