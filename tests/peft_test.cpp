#include "format/peft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/json.h"
#include "format/safetensors.h"

namespace snug {
namespace {

using testing::ElementsAre;

const std::filesystem::path kAdapter = std::filesystem::path(SNUG_FIXTURES) / "safetensors" / "adapter";

// adapter/ was written by PEFT.
TEST(PeftConfig, ReadsWhatPeftWrites) {
  const PeftConfig config = read_peft_config(kAdapter);
  EXPECT_EQ(config.base_model, "tiny");
  EXPECT_EQ(config.rank, 2);
  EXPECT_EQ(config.alpha, 6);
  EXPECT_EQ(config.dropout, 0.05);
  EXPECT_TRUE(config.rslora);
  EXPECT_THAT(config.target_modules, ElementsAre("down_proj", "q_proj"));
}

TEST(PeftConfig, ReadsBackWhatItWrites) {
  PeftConfig config{
      .base_model = "m", .rank = 8, .alpha = 12.5, .dropout = 0.1, .rslora = false, .target_modules = {"a"}};
  EXPECT_EQ(parse_peft_config(write_peft_config(config), "x").alpha, 12.5);
  config.alpha = 16;
  EXPECT_NE(write_peft_config(config).find("\"lora_alpha\": 16,"), std::string::npos);
}

TEST(PeftConfig, ScalesByRankOrItsRoot) {
  EXPECT_EQ(lora_scale({.rank = 16, .alpha = 32}), 2.0);
  EXPECT_EQ(lora_scale({.rank = 16, .alpha = 32, .rslora = true}), 8.0);
}

TEST(PeftConfig, RefusesWhatIsNotPlainLora) {
  const Json good = parse_json(read_text(kAdapter / kPeftConfigFile, 10000), "fixture");
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"peft_type", "IA3", "expected \"LORA\""},
      {"task_type", "SEQ_CLS", "expected \"CAUSAL_LM\""},
      {"use_dora", true, "key 'use_dora': found true, expected it off"},
      {"modules_to_save", Json::array({"lm_head"}), "'modules_to_save'"},
      {"rank_pattern", {{"q_proj", 4}}, "'rank_pattern'"},
      {"alpha_pattern", {{"q_proj", 4}}, "'alpha_pattern'"},
      {"layers_to_transform", Json::array({0}), "'layers_to_transform'"},
      {"some_new_feature", 3, "'some_new_feature'"},
      {"bias", "all", "expected \"none\""},
      {"fan_in_fan_out", true, "expected false"},
      {"init_lora_weights", "pissa", "'init_lora_weights': found \"pissa\""},
      {"target_modules", "q_.*", "expected a list of module names"},
      {"target_modules", Json::array(), "expected a list of module names"},
      {"r", 0, "'r': found 0, expected an integer from 1"},
      {"r", nullptr, "'r': found null"},
      {"lora_alpha", "x", "expected a number"},
  };
  for (const auto& c : cases) {
    Json changed = good;
    changed[c.key] = c.value;
    EXPECT_TRUE(fails_with<UserError>([&] { parse_peft_config(changed.dump(), "x"); }, c.message));
  }
}

TEST(PeftTensorName, IsTheOneInPeftsFile) {
  const SafetensorsIndex index = SafetensorsIndex::open_file(kAdapter / kPeftWeightsFile);
  const PeftTensorName a{"model.layers.0.mlp.down_proj", LoraHalf::A}, b{"model.layers.0.mlp.down_proj", LoraHalf::B};
  EXPECT_EQ(index.entries().size(), 4u);
  EXPECT_NO_THROW(index.require(to_string(a), {2, 64}, ""));
  EXPECT_NO_THROW(index.require(to_string(b), {32, 2}, ""));
}

TEST(PeftTargets, MatchWholeNamesAtTheEnd) {
  const PeftConfig config{.target_modules = {"q_proj", "mlp.down_proj"}};
  EXPECT_TRUE(targets(config, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(targets(config, "model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(targets(config, "q_proj"));
  EXPECT_FALSE(targets(config, "model.layers.0.self_attn.xq_proj"));
  EXPECT_FALSE(targets(config, "model.layers.0.other.down_proj"));
}

}  // namespace
}  // namespace snug
