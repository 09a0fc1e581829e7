#include "api/images.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "api/no_effect.h"
#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "format/json.h"
#include "format/minicpm_config.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostConfigBytes = uint64_t{16} << 20;

// Returns the processor that the model's files name; nothing without such a file.
std::optional<ImageProcessor> processor_of_files(const fs::path& model, int64_t view_tokens) {
  for (const char* const name : {"preprocessor_config.json", "processor_config.json"}) {
    const fs::path file = model / name;
    if (is_file(file)) return parse_image_processor(read_text(file, kMostConfigBytes), file.string(), view_tokens);
  }
  return std::nullopt;
}

// Returns the bounds of videos' frames: in a file of their own, or where transformers looks without one.
BoundedPixels video_pixels_of_files(const fs::path& model, const ImageProcessor& processor) {
  for (const char* const name :
       {"video_preprocessor_config.json", "processor_config.json", "preprocessor_config.json"}) {
    const fs::path file = model / name;
    if (!is_file(file)) continue;
    const std::string text = read_text(file, kMostConfigBytes);
    if (name == std::string_view("processor_config.json") &&
        !parse_json(text, file.string()).contains("video_processor"))
      continue;
    return parse_video_pixels(text, file.string(), processor);
  }
  user_error("{}: found no file that says how frames of videos are resized, expected video_preprocessor_config.json",
             model.string());
}

// Returns the id of a token of the model's images; `expected` is that of config.json, if it has one.
int32_t token_of(const Tokenizer& tokenizer, const std::string& text, const JsonObject& config,
                 std::string_view expected = "") {
  const std::optional<int32_t> id = tokenizer.token_id(text);
  if (!id) user_error("the tokenizer has no token '{}', with which the model's images are written", text);
  if (!expected.empty() && config.integer(expected, 0, INT32_MAX, *id) != *id)
    config.fail(expected, fmt::format("{}, which '{}' is in the tokenizer", *id, text));
  return *id;
}

// Throws UserError unless the tower's configuration has the number, if it has any, that the processor has.
void require_same(const JsonObject& tower, std::string_view key, int64_t of_processor) {
  if (tower.integer(key, 1, 1 << 20, of_processor) != of_processor)
    tower.fail(key, fmt::format("{} as preprocessor_config.json says", of_processor));
}

// Returns what `read` makes; where it throws UserError a default, and `refusal` says why.
template <class Read>
auto or_refusal(std::string& refusal, const Read& read) -> decltype(read()) {
  try {
    return read();
  } catch (const UserError& error) {
    refusal = error.what();
    return {};
  }
}

ImageProcessor qwen_vl_processor(const JsonObject& config, const fs::path& model) {
  std::optional<ImageProcessor> processor = processor_of_files(model, 0);
  if (!processor)
    user_error("{}: found no preprocessor_config.json, expected it beside config.json: it says how images are cut",
               model.string());
  if (!std::holds_alternative<BoundedPixels>(processor->sizing))
    user_error("{}: found the image processor of another family, expected Qwen2VLImageProcessor", model.string());
  if (config.has("vision_config")) {
    const JsonObject tower = config.object("vision_config");
    require_same(tower, "patch_size", processor->patch);
    require_same(tower, "spatial_merge_size", processor->merge);
    require_same(tower, "temporal_patch_size", processor->frames);
  }
  return *std::move(processor);
}

ImageInput qwen_vl(const JsonObject& config, const fs::path& model, const Tokenizer& tokenizer) {
  ImageInput input{.processor = {}, .markup = {}, .pad_token = 0};
  input.processor = or_refusal(input.no_images, [&] { return qwen_vl_processor(config, model); });
  input.processor.video_pixels = or_refusal(input.no_videos, [&] {
    return input.no_images.empty() ? video_pixels_of_files(model, input.processor) : input.processor.video_pixels;
  });
  if (!input.no_videos.empty()) input.processor.video_pixels = ImageProcessor().video_pixels;
  input.markup.pad = "<|image_pad|>";
  input.markup.video_pad = "<|video_pad|>";
  input.markup.begin = "<|vision_start|>";
  input.markup.end = "<|vision_end|>";
  input.pad_token = token_of(tokenizer, input.markup.pad, config, "image_token_id");
  input.video_pad_token = token_of(tokenizer, input.markup.video_pad, config, "video_token_id");
  token_of(tokenizer, input.markup.begin, config, "vision_start_token_id");
  token_of(tokenizer, input.markup.end, config, "vision_end_token_id");
  return input;
}

// Puts the tokens that MiniCPM-Llama3-V 2.5 and OmniLMM have for images, all of which are in the tokenizer alone.
void put_marks(ImageInput& input, const JsonObject& config, const Tokenizer& tokenizer) {
  input.markup.behind_unmarked = input.markup.between_parts = input.markup.around_named = "\n";
  for (const std::string& token : tokens_of(input.markup)) token_of(tokenizer, token, config);
  input.pad_token = token_of(tokenizer, input.markup.pad, config);
}

ImageProcessor minicpm_processor_of(const JsonObject& config, const fs::path& model, int64_t queries) {
  ImageProcessor processor = minicpm_processor(9, queries);
  if (std::optional<ImageProcessor> found = processor_of_files(model, queries)) {
    processor = *std::move(found);
    if (!std::holds_alternative<OverviewAndSlices>(processor.sizing))
      user_error("{}: found the image processor of another family, expected MiniCPMVImageProcessor", model.string());
  } else if (config.has("slice_config")) {
    const JsonObject slices = config.object("slice_config");
    processor.patch = slices.integer("patch_size", 1, 64, processor.patch);
    processor.sizing = read_slices(slices, processor.patch);
  }
  require_same(config, "patch_size", processor.patch);
  // The model has room for views of this size.
  const auto resolution = std::get<OverviewAndSlices>(processor.sizing).resolution;
  if (config.has("slice_config"))
    require_same(config.object("slice_config"), "scale_resolution", resolution);
  else if (resolution != OverviewAndSlices().resolution)
    user_error(
        "{}: found scale_resolution {} in preprocessor_config.json, expected {}, as config.json has no slice_config",
        model.string(), resolution, OverviewAndSlices().resolution);
  return processor;
}

ImageInput minicpm(const JsonObject& config, const fs::path& model, const Tokenizer& tokenizer) {
  expect_minicpm_2_5(config);
  const int64_t queries = config.integer("query_num", 1, 1 << 16, 96);
  ImageInput input{.processor = {}, .markup = {}, .pad_token = 0};
  input.processor = or_refusal(input.no_images, [&] { return minicpm_processor_of(config, model, queries); });
  input.markup.pad = "<unk>";
  input.markup.begin = "<image>";
  input.markup.end = "</image>";
  input.markup.slices_begin = "<slice>";
  input.markup.slices_end = "</slice>";
  input.markup.between_rows = "\n";
  put_marks(input, config, tokenizer);
  return input;
}

ImageInput omnilmm(const JsonObject& config, const Tokenizer& tokenizer) {
  if (!config.boolean("mm_use_im_start_end", true))
    config.fail("mm_use_im_start_end", "true: images stand between <im_start> and <im_end>");
  const int64_t side = config.integer("image_size", 14, 4096, 448),
                queries = config.integer("num_query", 1, 1 << 16, 64);
  ImageInput input{.processor = omnilmm_processor(side, queries), .markup = {}, .pad_token = 0};
  if (config.has("vision_config"))
    input.processor.patch = config.object("vision_config").integer("patch_size", 1, 64, input.processor.patch);
  if (side % input.processor.patch != 0)
    config.fail("image_size", fmt::format("a multiple of a patch of {}", input.processor.patch));
  input.markup.pad = "<im_patch>";
  input.markup.begin = "<im_start>";
  input.markup.end = "<im_end>";
  put_marks(input, config, tokenizer);
  return input;
}

// Puts the numbers that the options, or else the adapter, have in place of the model's, and notes what that changes.
void put_options(const JobConfig& options, ImageInput& input) {
  const ImageSizes given{options.image_min_pixels, options.image_max_pixels, options.max_slices};
  const ImageSizes trained = options.adapter.empty() ? ImageSizes() : read_image_sizes(options.adapter);
  const auto put = [&](std::string_view option, const std::optional<int64_t>& asked,
                       const std::optional<int64_t>& of_adapter, int64_t& value) {
    const int64_t of_model = std::exchange(value, asked ? *asked : of_adapter.value_or(value));
    if (!of_adapter || (asked ? asked == of_adapter : of_model == of_adapter)) return;
    input.notes.push_back(asked ? fmt::format("{} {}: {} was trained with {}", option_name(option), *asked,
                                              adapter_as_given(options), *of_adapter)
                                : fmt::format("images are sized by {} {}, with which {} was trained; the model has {}",
                                              option_name(option), *of_adapter, adapter_as_given(options), of_model));
  };
  if (auto* bounds = std::get_if<BoundedPixels>(&input.processor.sizing)) {
    put("image_min_pixels", given.min_pixels, trained.min_pixels, bounds->min_pixels);
    put("image_max_pixels", given.max_pixels, trained.max_pixels, bounds->max_pixels);
    if (bounds->min_pixels > bounds->max_pixels)
      user_error(
          "image_min_pixels, image_max_pixels: found at least {} and at most {} pixels, expected the least not "
          "above the most; what is not given is the adapter's, or the model's",
          bounds->min_pixels, bounds->max_pixels);
  } else if (auto* slices = std::get_if<OverviewAndSlices>(&input.processor.sizing)) {
    put("max_slices", given.max_slices, trained.max_slices, slices->max_slices);
  }
}

}  // namespace

std::optional<ImageInput> image_input(const JobConfig& options, const Tokenizer& tokenizer) {
  const fs::path model = options.model, file = model / "config.json";
  if (!is_file(file)) return std::nullopt;
  const Json json = parse_json(read_text(file, kMostConfigBytes), file.string());
  const JsonObject config(json, file.string());
  const std::string type = options.family.empty() ? config.string("model_type", "") : options.family;
  std::optional<ImageInput> input;
  if (type == "qwen2_vl" || type == "qwen2_5_vl") input = qwen_vl(config, model, tokenizer);
  if (type == "qwen2_5_vl")  // its class has 4 where the file says nothing
    input->positions_a_second =
        config.has("vision_config") ? config.object("vision_config").number("tokens_per_second", 1e-3, 1e3, 4) : 4;
  if (type == "minicpmv") input = minicpm(config, model, tokenizer);
  if (type == "omnilmm") input = omnilmm(config, tokenizer);
  if (input) put_options(options, *input);
  return input;
}

ImageSizes image_sizes(const JobConfig& options) {
  const ImageSizes trained = options.adapter.empty() ? ImageSizes() : read_image_sizes(options.adapter);
  const auto or_trained = [](const std::optional<int64_t>& asked, const std::optional<int64_t>& of_adapter) {
    return asked ? asked : of_adapter;
  };
  return {or_trained(options.image_min_pixels, trained.min_pixels),
          or_trained(options.image_max_pixels, trained.max_pixels), or_trained(options.max_slices, trained.max_slices)};
}

ImageSizes image_sizes(const ImageProcessor& processor) {
  ImageSizes sizes;
  if (const auto* bounds = std::get_if<BoundedPixels>(&processor.sizing)) {
    sizes.min_pixels = bounds->min_pixels;
    sizes.max_pixels = bounds->max_pixels;
  } else if (const auto* slices = std::get_if<OverviewAndSlices>(&processor.sizing)) {
    sizes.max_slices = slices->max_slices;
  }
  return sizes;
}

std::vector<std::string> image_options_without_effect(const JobConfig& options, const std::optional<ImageInput>& input,
                                                      bool found_images) {
  const bool bounded = input && std::holds_alternative<BoundedPixels>(input->processor.sizing);
  const bool sliced = input && std::holds_alternative<OverviewAndSlices>(input->processor.sizing);
  std::vector<std::string> lines;
  const auto add = [&](const char* key, bool applies, std::string_view why) {
    const OptionSpec& spec = find_option(key, "table");
    if ((!applies || !found_images) && is_asked_for(options, spec))
      lines.push_back(fmt::format("{} {} changes nothing: {}", option_name(spec.key), spec.get(options),
                                  !input     ? "the model takes no images"
                                  : !applies ? why
                                             : "the data has no images"));
  };
  add("image_dir", input.has_value(), "");
  for (const char* const key : {"image_min_pixels", "image_max_pixels"})
    add(key, bounded, "the model's images have no such bounds");
  add("max_slices", sliced, "the model does not slice images");
  return lines;
}

}  // namespace snug
