// Models of texts and images beside transformers and peft, from their stored answers (tests/fixtures/README.md).
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "expect_error.h"
#include "image/processor.h"
#include "model/model_config.h"
#include "model/towers.h"
#include "parity.h"
#include "train/generate.h"

namespace snug {
namespace {

constexpr int64_t kTokens = 40, kPatches = 68;  // of a block

// With images of one size there is room for one more than there are.
int64_t patches_of(const ModelSpec& model) {
  return model.tower.image_side > 0 ? 5 * model.tower.image_patches() : kPatches;
}

JobSpec vision_job(const std::string& model, const std::optional<std::string>& adapter = std::nullopt) {
  JobSpec spec = tiny_job("../vision/" + model, adapter, DType::F32);
  spec.numerics.weight_decay = 0;
  spec.cut.sequence_length = kTokens;
  spec.cut.micro_batch = 4;
  spec.cut.patches = {patches_of(spec.model)};
  return spec;
}

class Vision : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return vision() / GetParam(); }
};

// Of four samples in one pass, one of them without an image and one with two.
TEST_P(Vision, GradientsOfEveryParameterAgree) {
  const auto reference = read_tensors(folder() / "reference.safetensors");
  const auto json = read_json(folder() / "reference.json");
  const auto samples = vision_samples(GetParam());
  for (const bool packed : {false, true}) {
    JobSpec spec = vision_job(GetParam());
    spec.evaluate = true;
    TinySession session(spec, 1);
    session.load();
    TinyTrainer trainer(session);
    trainer.pack_samples(packed);
    EXPECT_NEAR(trainer.evaluate(samples) / static_cast<double>(loss_tokens(samples)), json["loss"].get<double>(),
                1e-5);
    trainer.passes(samples, 1, 0);
    expect_gradients(session, reference, json);
  }
}

void expect_same_training(const std::string& model, const std::optional<std::string>& adapter, const std::string& run,
                          int64_t passes, const std::vector<std::string>& frozen = {}) {
  SCOPED_TRACE(fmt::format("{} {} in {} passes", model, run, passes));
  const auto expected = read_json(vision() / model / "reference.json")[run];
  const auto reference = read_tensors(vision() / model / "reference.safetensors");
  const auto samples = vision_samples(model);
  JobSpec spec = vision_job(model, adapter);
  if (!frozen.empty()) {
    spec.rules.freeze = frozen;
    spec.table = trained_parameters(spec.model, spec.rules);
    store_as_files_do(spec.table, vision() / model);
  }
  spec.cut.passes = passes;
  spec.cut.micro_batch = 2 / passes;
  const auto samples_of_step = [&](int64_t number) {
    const auto i = static_cast<size_t>(number - 1);
    return std::vector{samples[i % 4], samples[(i + 1) % 4]};
  };
  const std::string prefix = adapter ? "lora_final." : frozen.empty() ? "final." : run + ".";
  expect_ten_steps(spec, samples_of_step, expected, reference, prefix, 10);
}

TEST_P(Vision, TenStepsOfAllPartsAgree) {
  for (const int64_t passes : {1, 2}) expect_same_training(GetParam(), std::nullopt, "full", passes);
}

TEST_P(Vision, TenLoraStepsBesideAFrozenTowerAgree) {
  for (const int64_t passes : {1, 2}) expect_same_training(GetParam(), "adapter_init", "lora", passes);
}

// The projector is trained beside it; OmniLMM's positions, which never are, stay.
TEST_P(Vision, TenStepsBesideAFrozenTowerAgree) {
  const std::map<std::string, std::vector<std::string>> towers{
      {"qwen2_vl", {"model.visual.patch_embed", "model.visual.blocks"}},
      {"qwen2_5_vl", {"model.visual.patch_embed", "model.visual.blocks"}},
      {"minicpmv", {"vpm"}},
      {"omnilmm", {"model.vision_tower"}}};
  for (const int64_t passes : {1, 2})
    expect_same_training(GetParam(), std::nullopt, "frozen_tower", passes, towers.at(GetParam()));
}

// Generates, with room for the images of a prompt.
JobSpec looking_job(const std::string& model) {
  JobSpec spec = vision_job(model);
  spec.purpose = Purpose::Generate;
  spec.table = full_parameters(spec.model, false);
  store_as_files_do(spec.table, vision() / model);
  spec.sources = find_sources(spec.table, {vision() / model, false, 1, std::nullopt});
  spec.strategy = plain_strategy(spec.table);
  spec.cut = {.sequence_length = 1, .patches = {patches_of(spec.model)}};
  spec.cache_positions = 48;  // fewer than two images have patches: rows have positions, patches have not
  return spec;
}

void look(Generator& generator, const ModelSpec& model, const TinySample& sample) {
  generator.look(sample.images, [&](const ImageViews& views) {
    RuntimeScalars counts;
    return fill_images({sample}, kTokens, true, model, views, counts);
  });
}

TEST_P(Vision, ImagesInOnePassAreEachAsAlone) {
  const JobSpec spec = looking_job(GetParam());
  TinySession session(spec, 1);
  session.load();
  Generator generator(session, {1, {}, {}});
  std::optional<Operand> kept;
  for (const Program& program : session.compiled().set.programs)
    for (const Op& op : program.ops)
      if (session.compiled().set.buffers[op.operands.back().buffer].name == "tower_rows") kept = op.operands.back();
  const auto rows_of = [&](const TinySample& sample) {
    look(generator, spec.model, sample);
    return values(session, kept.value());
  };
  const TinySample both = vision_samples(GetParam())[2];
  const std::vector<float> together = rows_of(both);
  ASSERT_EQ(both.images.size(), 2u);
  auto pixels = both.pixels.begin();
  auto rows = together.begin();
  for (const ImageTokens& image : both.images) {
    TinySample one = both;
    one.images = {image};
    const int64_t merge = spec.model.tower.merge, patches = image.rows * image.columns * merge * merge;
    one.pixels.assign(pixels, pixels + patches * spec.model.tower.patch_numbers());
    pixels += std::ssize(one.pixels);
    const std::vector<float> alone = rows_of(one);
    const auto end = rows + both.tokens_of(image) * spec.model.hidden;
    EXPECT_TRUE(std::equal(rows, end, alone.begin())) << image.rows << " x " << image.columns;
    rows = end;
  }
}

// Of a prompt that ends with a text, and one that ends with an image; fed in one piece, and with the caches of another
// prompt's beginning.
TEST_P(Vision, LogitsAfterAPromptWithImagesAgree) {
  const auto reference = read_tensors(folder() / "reference.safetensors");
  const auto samples = vision_samples(GetParam());
  const JobSpec spec = looking_job(GetParam());
  TinySession session(spec, 1);
  session.load();
  Generator generator(session, {1, {}, {}});
  std::vector<float> logits;
  take_logits(session, logits);
  const auto vocabulary = static_cast<size_t>(spec.model.vocabulary);
  for (const size_t s : {size_t{1}, size_t{2}, size_t{3}}) {
    const std::vector<int32_t>& ids = samples[s].ids;
    look(generator, spec.model, samples[s]);
    const auto& images = samples[s].images;
    const auto after_image = static_cast<size_t>(images[0].begin + samples[s].tokens_of(images[0]));
    for (const size_t length : {ids.size(), after_image, ids.size() - 1}) {
      generator.feed_prompt(std::span(ids).first(length));
      const std::vector<float>& all = reference.at(fmt::format("logits.{}", s));
      const std::vector<float> expected(all.begin() + static_cast<std::ptrdiff_t>((length - 1) * vocabulary),
                                        all.begin() + static_cast<std::ptrdiff_t>(length * vocabulary));
      EXPECT_LE(relative_error(logits, expected), 1e-5) << "sample " << s << ", " << length << " tokens";
    }
  }
}

TEST_P(Vision, ValuesOfTheTowerAreRecomputedAsThoseOfTheTextAre) {
  for (const Recompute recompute : {Recompute::None, Recompute::Block}) {
    JobSpec spec = vision_job(GetParam());
    spec.strategy = plain_strategy(spec.table, recompute);
    std::set<std::string> layers;  // of which something is recomputed
    const TinySession session(spec, 1);
    for (const Program& program : session.compiled().set.programs)
      for (const Op& op : program.ops)
        if (op.site.find(".recompute") != op.site.npos && std::holds_alternative<Gemm>(op.attrs))
          layers.insert(op.site.substr(0, op.site.find(".fwd")));
    EXPECT_EQ(layers.size(), recompute == Recompute::None ? 0 : spec.model.layers.size())
        << fmt::format("{}", fmt::join(layers, " "));
  }
}

// A pass of several blocks has as many images, each by itself: its attention costs as much as theirs does.
TEST_P(Vision, AttentionIsPricedByTheImageOfABlock) {
  const std::string model = GetParam();
  const std::map<std::string, std::set<int64_t>> expected{{"qwen2_vl", {kPatches}},
                                                          {"qwen2_5_vl", {16, kPatches}},  // windows of 4 x 4
                                                          {"minicpmv", {4}},               // slices of 2 x 2
                                                          {"omnilmm", {25, 26}}};  // beside a class row, and with it
  for (const int64_t blocks : {1, 4}) {
    JobSpec spec = vision_job(model);
    spec.cut.micro_batch = blocks;
    const TinySession session(spec, 1);
    std::set<int64_t> lengths;
    for (const Program& program : session.compiled().set.programs)
      for (const Op& op : program.ops)
        if (const auto* attention = std::get_if<Attention>(&op.attrs); attention && attention->bidirectional)
          lengths.insert(attention->longest);
    EXPECT_EQ(lengths, expected.at(model)) << blocks;
  }
}

// 32 layers of Mistral-7B and 32,009 tokens; 63 blocks of timm's tower with its table of 16 x 16; a resampler of 64
// queries.
TEST(OmniLmm, TheTowerThatItsConfigurationNamesHasTimmsSizes) {
  const ModelSpec model = read_model_config(std::filesystem::path(SNUG_FIXTURES) / "configs" / "omnilmm-12b").spec;
  const int64_t d = 4096, w = 1792, m = 15360, layer = 2 * d * d + 2 * d * 1024 + 3 * d * 14336 + 2 * d;
  const int64_t text = 32 * layer + 2 * 32009 * d + d;
  const int64_t block = 3 * w * w + 2 * w + w * w + w + 2 * w * m + m + w + 4 * w;
  const int64_t tower = 63 * block + 588 * w + w + w + 257 * w + 2 * w;
  const int64_t resampler = 2 * 64 * d + w * d + 3 * (d * d + d) + d * d + d + 3 * 2 * d + d * d;
  const ParamTable table = full_parameters(model, true);
  EXPECT_EQ(table.count(false), text + tower + resampler);
  EXPECT_EQ(table.count(true), text + tower + resampler - 64 * d);  // but the resampler's places
  EXPECT_EQ(model.tower.image_patches(), 1024);
}

TEST(OmniLmm, WhatItsCodeDoesNotDoIsRefused) {
  const auto refused = [](const nlohmann::json& change, std::string_view part) {
    auto config = read_json(vision() / "omnilmm" / "config.json");
    config.merge_patch(change);
    return fails_with<UserError>([&] { parse_model_config(config.dump(), "c.json"); }, part);
  };
  EXPECT_TRUE(refused({{"mm_vision_tower", "vit_large"}}, "expected eva02_enormous_patch14_clip_224, alone or with"));
  EXPECT_TRUE(refused({{"mm_vision_tower", nullptr}}, "mm_vision_tower"));
  EXPECT_TRUE(refused({{"mm_use_im_start_end", false}}, "mm_use_im_start_end': found false, expected true"));
  EXPECT_TRUE(refused({{"num_query", 5}}, "num_query': found 5, expected the number of a square's places"));
  EXPECT_TRUE(refused({{"image_size", 22}}, "expected a multiple of a patch of 4, and at least 12"));
  EXPECT_TRUE(refused({{"image_size", 8}}, "expected a multiple of a patch of 4, and at least 12"));
  EXPECT_TRUE(refused({{"vision_config", {{"num_heads", 5}}}}, "expected a number that divides 48"));
  EXPECT_TRUE(refused({{"vision_config", {{"depth", 1}}}}, "depth"));
}

// Passes have room for as many views as have the fewest patches, and a table for the longest side.
TEST(Towers, NoViewOfAPictureHasFewerPatchesThanTheTowerSays) {
  for (const auto& [resolution, patch] : {std::pair{448, 14}, {56, 14}, {28, 14}, {8, 4}, {100, 14}}) {
    ImageProcessor processor = minicpm_processor(9, 96);
    processor.sizing = OverviewAndSlices{.resolution = resolution, .max_slices = 9};
    processor.patch = patch;
    const int64_t least = towers::least_patches(resolution, patch, 200);
    const double longest = (resolution / patch + 1) * std::sqrt(200.0) + 2;
    int64_t found = INT64_MAX;
    for (int64_t height = 1; height <= 2 * resolution; height++)
      for (int64_t width = 1; width <= std::min<int64_t>(200 * height, 5000); width += 1 + width / 40) {
        if (height > 200 * width) continue;
        for (const ImageView& view : plan_image(processor, width, height, "a picture").views) {
          found = std::min(found, view.rows * view.columns);
          EXPECT_LE(static_cast<double>(std::max(view.rows, view.columns)), longest);
        }
      }
    EXPECT_GE(found, least) << resolution;
    EXPECT_LE(least, resolution / patch * (resolution / patch));
  }
}

// Models beside transformers where samples have videos, some of them next to images.
class VisionOfVideos : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return std::filesystem::path(SNUG_FIXTURES) / "video" / GetParam(); }
  nlohmann::json stored() const { return read_json(folder() / "samples.json"); }
  std::vector<TinySample> samples() const {
    std::vector<TinySample> samples;
    const auto tensors = read_tensors(folder() / "reference.safetensors");
    for (const auto& json : stored()) {
      TinySample sample{json["input_ids"].get<std::vector<int32_t>>(), json["labels"].get<std::vector<int32_t>>()};
      for (const auto& image : json["images"])
        sample.images.push_back({image["begin"], image["rows"].get<int64_t>() / 2, image["columns"].get<int64_t>() / 2,
                                 image["step"], image["time"]});
      if (!sample.images.empty()) sample.pixels = tensors.at(fmt::format("pixels.{}", samples.size()));
      samples.push_back(std::move(sample));
    }
    return samples;
  }
  static constexpr int64_t kVideoTokens = 44, kVideoPatches = 120;
};

TEST_P(VisionOfVideos, PositionsAreThoseOfTransformers) {
  const auto json = stored();
  const auto all = samples();
  for (size_t s = 0; s < all.size(); s++) {
    const int64_t tokens = std::ssize(all[s].ids);
    std::vector<int32_t> positions(static_cast<size_t>(3 * tokens), -1), expected;
    write_positions(positions, tokens, 0, tokens, all[s].images);
    for (const auto& axis : json[s]["positions"])
      for (const int32_t position : axis) expected.push_back(position);
    EXPECT_EQ(positions, expected) << "sample " << s;
  }
}

TEST_P(VisionOfVideos, GradientsOfEveryParameterAgree) {
  const auto reference = read_tensors(folder() / "reference.safetensors");
  const auto json = read_json(folder() / "reference.json");
  for (const bool packed : {false, true}) {
    JobSpec spec = vision_job(GetParam());
    spec.evaluate = true;
    spec.cut.sequence_length = kVideoTokens;
    spec.cut.patches = {kVideoPatches};
    TinySession session(spec, 1);
    session.load();
    TinyTrainer trainer(session);
    trainer.pack_samples(packed);
    EXPECT_NEAR(trainer.evaluate(samples()) / static_cast<double>(loss_tokens(samples())), json["loss"].get<double>(),
                1e-5);
    trainer.passes(samples(), 1, 0);
    expect_gradients(session, reference, json);
  }
}

TEST_P(VisionOfVideos, LogitsAgree) {
  const auto reference = read_tensors(folder() / "reference.safetensors");
  JobSpec spec = looking_job(GetParam());
  spec.cut.patches = {kVideoPatches};
  TinySession session(spec, 1);
  session.load();
  Generator generator(session, {1, {}, {}});
  std::vector<float> logits;
  take_logits(session, logits);
  const auto vocabulary = static_cast<std::ptrdiff_t>(spec.model.vocabulary);
  const auto all = samples();
  for (const size_t s : {size_t{0}, size_t{1}, size_t{3}}) {
    look(generator, spec.model, all[s]);
    generator.feed_prompt(all[s].ids);
    const std::vector<float>& stored = reference.at(fmt::format("logits.{}", s));
    const std::vector<float> expected(stored.end() - vocabulary, stored.end());
    EXPECT_LE(relative_error(logits, expected), 1e-5) << "sample " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, VisionOfVideos, testing::Values("qwen2_vl", "qwen2_5_vl"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Models, Vision, testing::Values("qwen2_vl", "qwen2_5_vl", "minicpmv", "omnilmm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace snug
