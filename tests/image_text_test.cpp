// What a model directory takes of images, and its texts with images beside those of transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "api/images.h"
#include "base/file.h"
#include "cli/sample_printer.h"
#include "data/dataset.h"
#include "expect_error.h"
#include "format/prompt_format.h"
#include "temp_directory.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path fixture(const char* name) { return std::filesystem::path(SNUG_FIXTURES) / name; }

std::string text_of(const std::filesystem::path& file) { return read_text(file, 1 << 20); }

// A copy of the fixture's model directory, of which files may be changed.
class ImageText : public ::testing::Test {
 protected:
  ImageText() {
    for (const char* name : {"config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(fixture("image_text/qwen2_vl") / name, directory_.path() / name);
    options_.model = directory_.path().string();
  }

  void set(const char* file, const char* key, const nlohmann::json& value) const {
    auto json = nlohmann::json::parse(text_of(directory_.path() / file));
    json[key] = value;
    std::ofstream(directory_.path() / file) << json;
  }
  std::optional<ImageInput> input() const {
    const Tokenizer tokenizer = Tokenizer::load(directory_.path());
    return image_input(options_, tokenizer);
  }
  // Makes it a directory of another model, whose tokenizer has these tokens from 256 on.
  void make(const nlohmann::json& config, const std::vector<std::string>& tokens) const {
    std::ofstream(directory_.path() / "config.json") << config;
    std::filesystem::remove(directory_.path() / "preprocessor_config.json");
    auto json = nlohmann::json::parse(text_of(directory_.path() / "tokenizer.json"));
    auto& added = json["added_tokens"];
    const nlohmann::json one = added[0];
    added = nlohmann::json::array();
    for (size_t i = 0; i < tokens.size(); i++) {
      added.push_back(one);
      added.back()["id"] = 256 + i;
      added.back()["content"] = tokens[i];
    }
    std::ofstream(directory_.path() / "tokenizer.json") << json;
    std::ofstream(directory_.path() / "tokenizer_config.json") << "{}";
  }

  TempDirectory directory_;
  JobConfig options_;
};

TEST_F(ImageText, TheIdsOfEveryFormAreThoseOfTransformers) {
  const Tokenizer tokenizer = Tokenizer::load(directory_.path());
  const TextEncoder encoder = encoder_of(tokenizer);
  const auto expected = nlohmann::json::parse(text_of(fixture("image_text/qwen2_vl/expected.json")));
  std::ifstream records(fixture("image_text/qwen2_vl/records.jsonl"));
  DataOptions data;
  data.files = {directory_.path() / "data.jsonl"};
  data.vocabulary = 263;
  data.prompt_format = decide_prompt_format("auto", {263, {}}, &tokenizer, nullptr);
  data.images = input();
  data.image_dir = fixture("image");
  size_t i = 0;
  for (std::string line; std::getline(records, line); i++) {
    SCOPED_TRACE(line);
    std::ofstream(data.files[0]) << line;
    const auto& one = expected.at(i);
    const Dataset dataset = load_dataset(data, &encoder);
    const std::span<const int32_t> ids = dataset.ids(0);
    EXPECT_EQ(std::vector(ids.begin(), ids.end()), one["ids"].get<std::vector<int32_t>>());
    const std::span<const DatasetView> views = dataset.views(0);
    ASSERT_EQ(views.size(), one["images"].size());
    for (size_t k = 0; k < views.size(); k++) {
      EXPECT_EQ(views[k].columns * 14, one["images"][k]["width"]);
      EXPECT_EQ(views[k].rows * 14, one["images"][k]["height"]);
      EXPECT_EQ(views[k].tokens, one["images"][k]["tokens"]);
    }
  }
  EXPECT_EQ(i, expected.size());
  EXPECT_GT(i, 20u);
}

TEST_F(ImageText, AViewIsShownInALineAndAnImageByItsSizeAndTokens) {
  const Tokenizer tokenizer = Tokenizer::load(directory_.path());
  Sample sample;
  sample.ids = {257, 259, 261, 261, 260, 260, 261, 260, 0};
  sample.labels = {kNoLabel, kNoLabel, kNoLabel, kNoLabel, kNoLabel, kNoLabel, kNoLabel, kNoLabel, 0};
  sample.images.resize(1);
  sample.views = {{0, 2, 2, 2, 4}, {0, 6, 1, 2, 2}};
  const auto shown = [&](bool json, const std::optional<ImageInput>& images, const Sample& of) {
    testing::internal::CaptureStdout();
    SamplePrinter(tokenizer, options_, images, json).print(of);
    return testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(shown(true, input(), sample),
            "{\"ids\":[257,259,261,261,260,260,261,260,0],\"mask\":[0,0,0,0,0,0,0,0,1],"
            "\"images\":[{\"width\":56,\"height\":28,\"tokens\":3}]}\n");
  EXPECT_EQ(shown(false, input(), sample),
            "257\t0\t\"<|im_start|>\"\n259\t0\t\"<|vision_start|>\"\n"
            "261\t0\t\"<|image_pad|>\" x 2: 56 x 28 pixels of image 1\n260\t0\t\"<|vision_end|>\"\n"
            "260\t0\t\"<|vision_end|>\"\n261\t0\t\"<|image_pad|>\" x 1: 28 x 28 pixels of image 1\n"
            "260\t0\t\"<|vision_end|>\"\n0\t1\t\"!\"\n\n");
  const Sample text{{257, 0}, {kNoLabel, 0}};
  EXPECT_EQ(shown(true, input(), text), "{\"ids\":[257,0],\"mask\":[0,1],\"images\":[]}\n");
  EXPECT_EQ(shown(true, std::nullopt, text), "{\"ids\":[257,0],\"mask\":[0,1]}\n");
}

TEST_F(ImageText, OptionsBoundPixels) {
  const auto bounds = [&] {
    const auto sizing = std::get<BoundedPixels>(input().value().processor.sizing);
    return std::pair(sizing.min_pixels, sizing.max_pixels);
  };
  EXPECT_EQ(bounds(), std::pair(int64_t{3136}, int64_t{15680}));
  options_.image_min_pixels = 784;
  EXPECT_EQ(bounds(), std::pair(int64_t{784}, int64_t{15680}));
  options_.image_max_pixels = 7840;
  EXPECT_EQ(bounds(), std::pair(int64_t{784}, int64_t{7840}));
  options_.image_min_pixels = 7841;
  EXPECT_TRUE(fails_with<UserError>(bounds, "found at least 7841 and at most 7840 pixels"));
}

TEST_F(ImageText, FilesThatSayDifferentThingsAreRefused) {
  const auto refused = [&](const char* file, const char* key, const nlohmann::json& value, std::string_view part) {
    const std::string before = text_of(directory_.path() / file);
    set(file, key, value);
    const auto result = fails_with<UserError>([&] { input(); }, part);
    std::ofstream(directory_.path() / file) << before;
    return result;
  };
  // Texts need no processor: what it lacks is said of the first image.
  const auto no_images = [&](const char* file, const char* key, const nlohmann::json& value) {
    const std::string before = text_of(directory_.path() / file);
    set(file, key, value);
    const std::string why = input().value().no_images;
    std::ofstream(directory_.path() / file) << before;
    return why;
  };
  EXPECT_TRUE(input());
  EXPECT_TRUE(refused("config.json", "image_token_id", 3, "expected 261, which '<|image_pad|>' is in the tokenizer"));
  EXPECT_TRUE(refused("config.json", "vision_start_token_id", 3, "expected 259"));
  EXPECT_EQ(input()->no_images, "");
  EXPECT_THAT(no_images("config.json", "vision_config", {{"patch_size", 16}}),
              HasSubstr("expected 14 as preprocessor_config.json"));
  EXPECT_THAT(no_images("config.json", "vision_config", {{"spatial_merge_size", 1}}),
              HasSubstr("expected 2 as preprocessor_config"));
  EXPECT_THAT(no_images("preprocessor_config.json", "image_processor_type", "Gemma3ImageProcessor"),
              HasSubstr("expected one of MiniCPMVImageProcessor, "));
  // Only videos need a processor of videos.
  std::ofstream(directory_.path() / "video_preprocessor_config.json") << R"({"crop": 3})";
  EXPECT_EQ(input()->no_images, "");
  EXPECT_THAT(input()->no_videos, HasSubstr("no such key"));
  std::filesystem::remove(directory_.path() / "video_preprocessor_config.json");
  std::filesystem::rename(directory_.path() / "preprocessor_config.json", directory_.path() / "kept.json");
  EXPECT_THAT(input()->no_images, HasSubstr("found no preprocessor_config.json"));
  std::ofstream(directory_.path() / "processor_config.json")
      << nlohmann::json{{"image_processor", nlohmann::json::parse(text_of(directory_.path() / "kept.json"))}};
  EXPECT_EQ(input()->no_images, "");
  EXPECT_THAT(input()->no_videos, HasSubstr("found no file that says how frames of videos are resized"));
  set("config.json", "model_type", "qwen2");
  EXPECT_FALSE(input());
}

TEST_F(ImageText, MiniCpmSlicesAndNumbersNoImages) {
  const std::vector<std::string> tokens{"<unk>", "<image>", "</image>", "<slice>", "</slice>"};
  make({{"model_type", "minicpmv"}, {"version", "2.5"}, {"query_num", 96}, {"patch_size", 14}}, tokens);
  const ImageInput found = input().value();
  EXPECT_EQ(found.pad_token, 256);
  EXPECT_EQ(found.processor.view_tokens, 96);
  EXPECT_EQ(std::get<OverviewAndSlices>(found.processor.sizing).max_slices, 9);
  // 768 x 768 pixels: an overview and 2 x 2 slices.
  const ImagePlan plan = plan_image(found.processor, 768, 768, "");
  const std::string view = "<image><unk></image>";
  EXPECT_EQ(text_of_image(found.markup, plan), view + "<slice>" + view + view + "\n" + view + view + "</slice>");
  EXPECT_EQ(plan.tokens, 5 * 96);
  EXPECT_EQ(text_of_image(found.markup, plan_image(found.processor, 300, 200, "")), view);
  options_.max_slices = 2;
  EXPECT_EQ(plan_image(input().value().processor, 768, 768, "").views.size(), 3u);
  set("config.json", "version", "2.6");
  EXPECT_TRUE(fails_with<UserError>([&] { input(); }, "expected 2.5"));
  make({{"model_type", "minicpmv"}}, {"<unk>", "<image>", "</image>", "<slice>"});
  EXPECT_TRUE(fails_with<UserError>([&] { input(); }, "the tokenizer has no token '</slice>'"));
}

TEST_F(ImageText, OmniLmmHasOneViewOfASize) {
  make({{"model_type", "omnilmm"}, {"num_query", 64}, {"image_size", 448}}, {"<im_patch>", "<im_start>", "<im_end>"});
  const ImageInput found = input().value();
  const ImagePlan plan = plan_image(found.processor, 300, 2000, "");
  EXPECT_EQ(text_of_image(found.markup, plan), "<im_start><im_patch><im_end>");
  EXPECT_EQ(plan.tokens, 64);
  EXPECT_EQ(found.markup.behind_unmarked, "\n");
}

TEST_F(ImageText, OptionsOfAnotherModelAreSaidToChangeNothing) {
  for (const char* key : {"image_dir", "image_min_pixels", "image_max_pixels", "max_slices"})
    options_.flags.insert(key);
  options_.image_dir = "photos";
  options_.image_min_pixels = 784;
  options_.image_max_pixels = 7840;
  options_.max_slices = 3;
  EXPECT_THAT(image_options_without_effect(options_, input(), true),
              ElementsAre("--max-slices 3 changes nothing: the model does not slice images"));
  EXPECT_EQ(image_options_without_effect(options_, std::nullopt, true).size(), 4u);
  EXPECT_EQ(image_options_without_effect(options_, std::nullopt, true)[0],
            "--image-dir photos changes nothing: the model takes no images");
  make({{"model_type", "minicpmv"}}, {"<unk>", "<image>", "</image>", "<slice>", "</slice>"});
  EXPECT_EQ(image_options_without_effect(options_, input(), true).size(), 2u);
}

}  // namespace
}  // namespace snug
