// Sizes, patches and rows are those of transformers' processors, to the last bit.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <map>

#include "base/error.h"
#include "expect_error.h"
#include "image/processor.h"
#include "image_fixture.h"

namespace snug {
namespace {

using Json = nlohmann::json;

int64_t tokens_of(const std::string& name) { return name == "omnilmm" ? 64 : 96; }

ImageProcessor stored_processor(const std::string& name) {
  if (name == "omnilmm") return omnilmm_processor(140, 64);
  const std::string file = "image_processor/" + name + ".json";
  return parse_image_processor(stored_json(file).dump(), file, tokens_of(name));
}

TEST(ImageProcessor, RowsAreTheReferences) {
  std::map<std::string, int> cases;
  for (const Json& expected : stored_json("image_processor/expected_rows.json")) {
    const std::string name = expected["config"], file = expected["file"];
    SCOPED_TRACE(name + " " + file);
    cases[name]++;
    const ImageProcessor processor = stored_processor(name);
    const Image image = stored_image(file);
    const ImagePlan plan = plan_image(processor, image.width, image.height, file);
    ASSERT_EQ(plan.patches, expected["patches"]);
    std::vector<float> rows(static_cast<size_t>(plan.patches * processor.row_size()),
                            std::numeric_limits<float>::quiet_NaN());
    write_patches(processor, image, rows);
    for (size_t i = 0; i < 4; i++) EXPECT_EQ(rows[i], expected["begin"][i].get<float>());
    EXPECT_EQ(checksum(std::as_bytes(std::span(rows))), expected["rows"]);
    if (expected.contains("grid")) {
      ASSERT_EQ(plan.views.size(), 1u);
      EXPECT_EQ(plan.views[0].rows, expected["grid"][0]);
      EXPECT_EQ(plan.views[0].columns, expected["grid"][1]);
      EXPECT_EQ(plan.tokens * 4, plan.patches);
    } else {
      EXPECT_EQ(plan.tokens, static_cast<int64_t>(plan.views.size()) * tokens_of(name));
    }
    if (expected.contains("targets")) {
      EXPECT_EQ(plan.slice_rows, expected["slices"][0]);
      EXPECT_EQ(plan.slice_columns, expected["slices"][1]);
      ASSERT_EQ(plan.views.size(), expected["targets"].size());
      for (size_t i = 0; i < plan.views.size(); i++) {
        EXPECT_EQ(plan.views[i].rows, expected["targets"][i][0]);
        EXPECT_EQ(plan.views[i].columns, expected["targets"][i][1]);
      }
    }
  }
  EXPECT_EQ(cases.size(), 6u);
}

TEST(ImageProcessor, SizesAreTheReferences) {
  const Json families = stored_json("image_processor/expected_sizes.json");
  for (const auto& [name, cases] : families.items()) {
    const ImageProcessor processor = stored_processor(name);
    for (const Json& expected : cases) {
      SCOPED_TRACE(name + " " + expected.dump());
      const ImagePlan plan = plan_image(processor, expected[0], expected[1], "x");
      EXPECT_EQ(plan.views[0].width, expected[2]);
      EXPECT_EQ(plan.views[0].height, expected[3]);
      if (expected.size() == 4) continue;
      EXPECT_EQ(plan.slice_columns, expected[4]);
      EXPECT_EQ(plan.slice_rows, expected[5]);
      ASSERT_EQ(plan.views.size(), 1 + static_cast<size_t>(plan.slice_columns * plan.slice_rows));
      EXPECT_EQ(plan.views.size() > 1 ? plan.views[1].resized_width : 0, expected[6]);
      EXPECT_EQ(plan.views.size() > 1 ? plan.views[1].resized_height : 0, expected[7]);
    }
  }
}

// Numbers that the models' pages and issues name.
TEST(ImageProcessor, TokensOfCommonSizes) {
  const ImageProcessor qwen = stored_processor("qwen2_vl"), minicpm = minicpm_processor(9, 96);
  EXPECT_EQ(plan_image(qwen, 448, 448, "x").tokens, 256);
  EXPECT_EQ(plan_image(qwen, 640, 480, "x").tokens, 391);
  EXPECT_EQ(plan_image(qwen, 768, 768, "x").tokens, 729);
  EXPECT_EQ(plan_image(qwen, 1024, 1024, "x").tokens, 1369);
  EXPECT_EQ(plan_image(qwen, 4000, 3000, "x").tokens, 15301);
  const ImagePlan nine = plan_image(minicpm, 1344, 1344, "x");
  EXPECT_EQ(nine.slice_columns, 3);
  EXPECT_EQ(nine.tokens, 960);
  EXPECT_EQ(nine.patches, 10240);
  const ImagePlan wide = plan_image(minicpm, 1920, 1080, "x");
  EXPECT_EQ(wide.slice_columns, 4);
  EXPECT_EQ(wide.slice_rows, 2);
  EXPECT_EQ(plan_image(minicpm, 300, 200, "x").tokens, 96);
  EXPECT_EQ(plan_image(minicpm_processor(1, 96), 4000, 3000, "x").views.size(), 1u);
}

TEST(ImageProcessor, ThinPicturesAreRefusedWhereTheyWouldGrow) {
  for (const char* name : {"qwen2_vl", "minicpm"}) {
    const ImageProcessor processor = stored_processor(name);
    EXPECT_GT(plan_image(processor, 2000, 10, "x").patches, 0);
    EXPECT_TRUE(fails_with<UserError>([&] { plan_image(processor, 10, 2001, "data.jsonl, line 3: a.png"); },
                                      "data.jsonl, line 3: a.png: found 10 x 2001 pixels, expected a long side of at "
                                      "most 200 times the short one"));
  }
  EXPECT_EQ(plan_image(stored_processor("omnilmm"), 1, 5000, "x").patches, 100);
}

testing::AssertionResult config_fails(const std::string& name, const Json& changes, std::string_view part) {
  Json config = stored_json("image_processor/" + name + ".json");
  config.merge_patch(changes);
  return fails_with<UserError>([&] { parse_image_processor(config.dump(), "p.json", tokens_of(name)); }, part);
}

TEST(ImageProcessor, ConfigurationsAreChecked) {
  EXPECT_TRUE(config_fails("qwen2_vl", {{"crop_size", 3}}, "p.json, key 'crop_size': found 3, expected no such key"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"image_processor_type", "CLIPImageProcessor"}},
                           "expected one of MiniCPMVImageProcessor, Qwen2VLImageProcessor, Qwen2_5_VLImageProcessor"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"image_processor_type", nullptr}}, "image_processor_type"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"do_resize", false}}, "expected true (the tower's patches ask for it)"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"do_center_crop", true}}, "cropping is not supported"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"resample", 0}}, "expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic)"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"image_std", {0.5, 0, 0.5}}}, "three numbers from 1e-06 to 1000"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"image_mean", {0.5, 0.5}}}, "three numbers"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"min_pixels", 12845057}}, "expected the least not above the most"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"max_pixels", 1ull << 40}}, "max_pixels"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"patch_size", 0}}, "patch_size"));
  EXPECT_TRUE(config_fails("qwen2_vl", {{"size", {{"height", 3}}}}, "only shortest_edge and longest_edge"));
  EXPECT_TRUE(config_fails("minicpm", {{"image_feature_size", 64}}, "expected 96 as config.json says"));
  EXPECT_TRUE(config_fails("minicpm", {{"version", 2.6}}, "expected 2.5"));
  EXPECT_TRUE(config_fails("minicpm", {{"slice_mode", false}}, "were trained with slices"));
  EXPECT_TRUE(config_fails("minicpm", {{"use_image_id", true}}, "do not number images"));
  EXPECT_TRUE(config_fails("minicpm", {{"std", {1, 1, 1}}}, "the numbers of norm_std"));
  EXPECT_TRUE(config_fails("minicpm", {{"min_pixels", 3}}, "no such key"));
  // A key without a value is as good as none.
  Json config = stored_json("image_processor/qwen2_vl.json");
  config["crop_size"] = nullptr;
  EXPECT_EQ(parse_image_processor(config.dump(), "p.json", 0).frames, 2);
}

// The older form of bounds, beside the newer one, counts.
TEST(ImageProcessor, BoundsOfBothForms) {
  Json config = stored_json("image_processor/qwen2_vl.json");
  config["size"] = {{"shortest_edge", 1}, {"longest_edge", 2}};
  const auto bounds = [](const Json& json) {
    return std::get<BoundedPixels>(parse_image_processor(json.dump(), "p.json", 0).sizing);
  };
  EXPECT_EQ(bounds(config).max_pixels, 12845056);
  config.erase("max_pixels"), config.erase("min_pixels");
  EXPECT_EQ(bounds(config).min_pixels, 1);
  EXPECT_EQ(bounds(config).max_pixels, 2);
  config.erase("size");
  EXPECT_EQ(bounds(config).max_pixels, 1003520);
}

}  // namespace
}  // namespace snug
