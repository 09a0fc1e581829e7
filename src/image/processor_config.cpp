#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/error.h"
#include "format/json.h"
#include "image/processor.h"

namespace snug {

namespace {

constexpr int64_t kMostPixels = 1 << 28;

enum class Family { Qwen2Vl, MiniCpm };

// The classes of transformers and of the model's own code. The endings name implementations of the same.
const std::map<std::string, Family, std::less<>> kFamilies = {
    {"Qwen2VLImageProcessor", Family::Qwen2Vl},
    {"Qwen2_5_VLImageProcessor", Family::Qwen2Vl},
    {"MiniCPMVImageProcessor", Family::MiniCpm},
};

using Keys = std::set<std::string, std::less<>>;

// Keys that say nothing of pixels: names of Python classes, and how texts name an image, which the tokenizer knows.
const Keys kPassed = {"image_processor_type", "processor_class", "auto_map", "feature_extractor_type", "use_fast",
                      "default_to_square", "device", "return_tensors", "disable_grouping",
                      // MiniCPM's, as published and as its class writes them again
                      "im_start", "im_end", "slice_start", "slice_end", "unk", "im_id_start", "im_id_end",
                      "im_start_token", "im_end_token", "slice_start_token", "slice_end_token", "unk_token"};
const Keys kCommon = {"do_resize", "do_rescale",     "do_normalize", "do_convert_rgb", "do_center_crop", "do_pad",
                      "resample",  "rescale_factor", "image_mean",   "image_std",      "size",           "data_format"};
// How a video's file is sampled, which lists of frames are not.
const Keys kVideo = {"video_processor_type", "do_sample_frames",     "fps",
                     "num_frames",           "min_frames",           "max_frames",
                     "video_metadata",       "return_metadata",      "input_data_format",
                     "max_video_tokens",     "cap_pixels_per_frame", "use_token_compression"};
const Keys kQwen2Vl = {"min_pixels", "max_pixels", "patch_size", "merge_size", "temporal_patch_size"};
const Keys kMiniCpm = {"max_slice_nums", "scale_resolution",
                       "patch_size",     "image_feature_size",
                       "slice_mode",     "use_image_id",
                       "norm_mean",      "norm_std",
                       "mean",           "std",
                       "version"};

// Throws UserError for a key with a value that is in none of the sets. Null is as good as no key, as in transformers.
void refuse_unknown(const JsonObject& config, const Keys& keys) {
  for (const auto& [key, value] : config.value().items())
    if (!value.is_null() && !keys.contains(key) && !kCommon.contains(key) && !kPassed.contains(key))
      config.fail(key, "no such key: snug does not know what it does to an image");
}

void require(const JsonObject& config, std::string_view key, bool value, std::string_view why) {
  if (config.boolean(key, value) != value) config.fail(key, fmt::format("{} ({})", value, why));
}

std::array<double, 3> three(const JsonObject& config, std::string_view key, std::array<double, 3> fallback,
                            double low) {
  if (!config.has(key)) return fallback;
  const Json& list = config.at(key);
  const auto is_number = [&](const Json& x) {
    return x.is_number() && x.get<double>() >= low && x.get<double>() <= 1e3;
  };
  if (!list.is_array() || list.size() != 3 || !std::all_of(list.begin(), list.end(), is_number))
    config.fail(key, fmt::format("three numbers from {} to 1000", low));
  return {list[0].get<double>(), list[1].get<double>(), list[2].get<double>()};
}

// Reads what all families have; `processor` has the defaults of its class.
void read_common(const JsonObject& config, ImageProcessor& processor) {
  require(config, "do_resize", true, "the tower's patches ask for it");
  require(config, "do_rescale", true, "others are not supported");
  require(config, "do_normalize", true, "others are not supported");
  require(config, "do_convert_rgb", true, "images are made RGB");
  require(config, "do_center_crop", false, "cropping is not supported");
  require(config, "do_pad", false, "padding is not supported");
  if (config.string("data_format", "channels_first") != "channels_first") config.fail("data_format", "channels_first");
  const int64_t resample = config.integer("resample", 0, 5, static_cast<int64_t>(processor.resampling));
  if (resample < 1 || resample > 3) config.fail("resample", "1 (Lanczos), 2 (bilinear) or 3 (bicubic)");
  processor.resampling = static_cast<Resampling>(resample);
  processor.factor = config.number("rescale_factor", 1e-9, 1.0, processor.factor);
  processor.mean = three(config, "image_mean", processor.mean, 0.0);
  processor.deviation = three(config, "image_std", processor.deviation, 1e-6);
}

// Reads Qwen2VLImageProcessor's keys, or those of Qwen2VLVideoProcessor, whose default bounds are others.
ImageProcessor read_qwen2_vl(const JsonObject& config, BoundedPixels bounds = {}) {
  ImageProcessor processor{.merge = 2,
                           .frames = 2,
                           .mean = {0.48145466, 0.4578275, 0.40821073},
                           .deviation = {0.26862954, 0.26130258, 0.27577711}};
  read_common(config, processor);
  if (config.has("size")) {
    const JsonObject size = config.object("size");
    for (const auto& [key, value] : size.value().items())
      if (key != "shortest_edge" && key != "longest_edge" && key != "min_pixels" && key != "max_pixels")
        size.fail(key, "only shortest_edge and longest_edge, the least and the most pixels");
    // The class reads these two names alone: others are of releases in which min_pixels and max_pixels stood outside.
    bounds.min_pixels = size.integer(size.has("shortest_edge") ? "shortest_edge" : "min_pixels", 1, kMostPixels);
    bounds.max_pixels = size.integer(size.has("longest_edge") ? "longest_edge" : "max_pixels", 1, kMostPixels);
  }
  bounds.min_pixels = config.integer("min_pixels", 1, kMostPixels, bounds.min_pixels);
  bounds.max_pixels = config.integer("max_pixels", 1, kMostPixels, bounds.max_pixels);
  processor.patch = config.integer("patch_size", 1, 64, processor.patch);
  processor.merge = config.integer("merge_size", 1, 8, processor.merge);
  processor.frames = config.integer("temporal_patch_size", 1, 8, processor.frames);
  if (bounds.min_pixels > bounds.max_pixels)
    user_error("{}: found at least {} and at most {} pixels, expected the least not above the most",
               config.where("max_pixels"), bounds.min_pixels, bounds.max_pixels);
  processor.sizing = bounds;
  return processor;
}

// Returns the tokens of a view that config.json gives; a processor's file that says otherwise is another model's.
int64_t agreed_tokens(const JsonObject& config, std::string_view key, int64_t view_tokens) {
  if (config.integer(key, 1, 1 << 20, view_tokens) != view_tokens)
    config.fail(key, fmt::format("{} as config.json says", view_tokens));
  return view_tokens;
}

ImageProcessor read_minicpm(const JsonObject& config, int64_t view_tokens) {
  refuse_unknown(config, kMiniCpm);
  ImageProcessor processor = minicpm_processor(9, view_tokens);
  read_common(config, processor);
  expect_minicpm_2_5(config);
  agreed_tokens(config, "image_feature_size", view_tokens);
  require(config, "use_image_id", false, "models of version 2.5 do not number images");
  processor.mean = three(config, "norm_mean", processor.mean, 0.0);
  processor.deviation = three(config, "norm_std", processor.deviation, 1e-6);
  // What the class writes, but does not read again.
  if (three(config, "mean", processor.mean, 0.0) != processor.mean) config.fail("mean", "the numbers of norm_mean");
  if (three(config, "std", processor.deviation, 0.0) != processor.deviation)
    config.fail("std", "the numbers of norm_std");
  processor.patch = config.integer("patch_size", 1, 64, processor.patch);
  processor.sizing = read_slices(config, processor.patch);
  return processor;
}

// Returns the family of a class, with or without the ending that names an implementation.
Family family_of(const JsonObject& config) {
  std::string name = config.string("image_processor_type");
  for (const std::string_view ending : {"Fast", "Pil"})
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  const auto found = kFamilies.find(name);
  if (found != kFamilies.end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [known, family] : kFamilies) names.push_back(known);
  config.fail("image_processor_type", fmt::format("one of {}", fmt::join(names, ", ")));
}

}  // namespace

ImageProcessor parse_image_processor(std::string_view json, std::string_view source, int64_t view_tokens) {
  const Json value = parse_json(json, source);
  const JsonObject file(value, std::string(source));
  const JsonObject config = file.has("image_processor") ? file.object("image_processor") : file;
  switch (family_of(config)) {
    case Family::Qwen2Vl:
      refuse_unknown(config, kQwen2Vl);
      return read_qwen2_vl(config);
    case Family::MiniCpm:
      return read_minicpm(config, view_tokens);
  }
  internal_error("a family of processors without a reader");
}

BoundedPixels parse_video_pixels(std::string_view json, std::string_view source, const ImageProcessor& processor) {
  const Json value = parse_json(json, source);
  const JsonObject file(value, std::string(source));
  const JsonObject config = file.has("video_processor") ? file.object("video_processor") : file;
  constexpr std::string_view kClass = "Qwen2VLVideoProcessor";
  if (config.string("video_processor_type", std::string(kClass)) != kClass)
    config.fail("video_processor_type", fmt::format("\"{}\"", kClass));
  Keys keys = kQwen2Vl;
  keys.insert(kVideo.begin(), kVideo.end());
  refuse_unknown(config, keys);
  require(config, "cap_pixels_per_frame", false, "a bound by a video's number of frames is not supported");
  const ImageProcessor frames = read_qwen2_vl(config, {.min_pixels = 128 * 28 * 28, .max_pixels = 768 * 28 * 28});
  const auto but_bounds = [](const ImageProcessor& p) {
    return std::tuple(p.resampling, p.patch, p.merge, p.frames, p.factor, p.mean, p.deviation);
  };
  if (but_bounds(frames) != but_bounds(processor))
    user_error(
        "{}: frames of videos are resampled, normalised or cut in patches otherwise than images are, expected "
        "the same numbers but for the least and the most pixels",
        config.where("image_mean"));
  return std::get<BoundedPixels>(frames.sizing);
}

}  // namespace snug
