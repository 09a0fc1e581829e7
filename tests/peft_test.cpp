#include "format/peft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/json.h"
#include "format/peft_tensors.h"
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
  const std::vector<std::string> all{"q_proj"};
  EXPECT_EQ(target_of({.rank = 16, .alpha = 32, .target_modules = all}, "q_proj")->scale, 2.0);
  EXPECT_EQ(target_of({.rank = 16, .alpha = 32, .rslora = true, .target_modules = all}, "q_proj")->scale, 8.0);
}

TEST(PeftConfig, RefusesWhatIsNotPlainLora) {
  const Json good = parse_json(read_text(kAdapter / kPeftConfigFile, 10000), "fixture");
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"peft_type", "IA3", "expected \"LORA\""},
      {"task_type", "TOKEN_CLS", "expected \"CAUSAL_LM\" or \"SEQ_CLS\""},
      {"task_type", "SEQ_CLS", "'modules_to_save': found null, expected \"score\" among them"},
      {"use_dora", 1, "key 'use_dora': found 1"},
      {"lora_bias", true, "'lora_bias': found true, expected it off"},
      {"target_parameters", Json::array({"mlp.experts"}), "such as those of experts"},
      {"modules_to_save", "lm_head", "'modules_to_save': found \"lm_head\", expected a list of module names"},
      {"rank_pattern", {{"q_proj", 0}}, "key 'rank_pattern.q_proj': found 0"},
      {"rank_pattern", {{"q_[", 4}}, "key 'rank_pattern': found '(.*\\.)?(q_[)', expected a regular expression"},
      {"alpha_pattern", {{"q_proj", "x"}}, "key 'alpha_pattern.q_proj'"},
      {"layers_to_transform", "0", "expected a layer's number, or a list of them"},
      {"layers_pattern", "h|layers", "expected names, no expressions"},
      {"trainable_token_indices", Json::array({3, 3}), "'trainable_token_indices'"},
      {"trainable_token_indices", Json::array({-1}), "'trainable_token_indices'"},
      {"exclude_modules", 3, "'exclude_modules'"},
      {"some_new_feature", 3, "'some_new_feature'"},
      {"bias", "some", "expected \"none\", \"all\" or \"lora_only\""},
      {"init_lora_weights", "pissa_niter_4", "'init_lora_weights': found \"pissa_niter_4\""},
      {"init_lora_weights", "loftq", "others take off of the base what is drawn"},
      {"target_modules", "(q_proj", "'target_modules': found '(q_proj', expected a regular expression"},
      {"target_modules", Json::array(), "expected a list of module names, or a regular expression"},
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

PeftConfig with(Json keys) {
  Json config = parse_json(read_text(kAdapter / kPeftConfigFile, 10000), "fixture");
  config["use_rslora"] = false;
  config["target_modules"] = {"q_proj", "v_proj", "down_proj"};
  config.update(keys);
  return parse_peft_config(config.dump(), "x");
}

bool is_adapted(const PeftConfig& config, std::string_view linear) { return target_of(config, linear).has_value(); }

TEST(PeftTargets, MatchWholeNamesAtTheEnd) {
  const PeftConfig config{.rank = 1, .target_modules = {"q_proj", "mlp.down_proj"}};
  EXPECT_TRUE(is_adapted(config, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(is_adapted(config, "model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(is_adapted(config, "q_proj"));
  EXPECT_FALSE(is_adapted(config, "model.layers.0.self_attn.xq_proj"));
  EXPECT_FALSE(is_adapted(config, "model.layers.0.other.down_proj"));
}

TEST(PeftTargets, AnExpressionMustFitTheWholePath) {
  const PeftConfig config = with({{"target_modules", R"(.*\blayers\.[1-9]\..*?(?:q|v)_proj)"}});
  EXPECT_TRUE(is_adapted(config, "model.layers.1.self_attn.v_proj"));
  EXPECT_FALSE(is_adapted(config, "model.layers.0.self_attn.v_proj"));
  EXPECT_FALSE(is_adapted(config, "model.layers.1.self_attn.v_proj.more"));
  EXPECT_TRUE(is_adapted(with({{"target_modules", "All-Linear"}}), "model.layers.3.mlp.up_proj"));
}

TEST(PeftTargets, AnExpressionThatNeverEndsIsAnError) {
  const PeftConfig config = with({{"target_modules", "(a+)+[bc]"}});
  EXPECT_TRUE(fails_with<UserError>([&] { target_of(config, std::string(4000, 'a')); }, "cannot be matched"));
}

TEST(PeftTargets, ExcludedAndSavedModulesHaveNone) {
  const PeftConfig listed = with({{"exclude_modules", {"layers.0.self_attn.q_proj", "v_proj"}}});
  EXPECT_FALSE(is_adapted(listed, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(is_adapted(listed, "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(is_adapted(listed, "model.layers.1.self_attn.v_proj"));
  EXPECT_FALSE(is_adapted(with({{"exclude_modules", ".*attn.*"}}), "model.layers.0.self_attn.q_proj"));
  const PeftConfig saved = with({{"modules_to_save", {"mlp"}}});
  EXPECT_FALSE(is_adapted(saved, "model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(is_adapted(saved, "model.layers.0.self_attn.q_proj"));
}

TEST(PeftTargets, LayersAreTheFirstNumberOrThatBehindTheirName) {
  const PeftConfig one = with({{"layers_to_transform", 1}});
  EXPECT_TRUE(is_adapted(one, "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(is_adapted(one, "model.layers.11.self_attn.q_proj"));
  EXPECT_FALSE(is_adapted(one, "model.layers.0.parts.1.q_proj"));
  const PeftConfig named = with({{"layers_to_transform", {0, 1}}, {"layers_pattern", "parts"}});
  EXPECT_TRUE(is_adapted(named, "model.layers.7.parts.1.q_proj"));
  EXPECT_FALSE(is_adapted(named, "model.layers.1.self_attn.q_proj"));
  const PeftConfig whole =
      with({{"layers_to_transform", {0}}, {"target_modules", {"model.layers.1.self_attn.q_proj"}}});
  EXPECT_TRUE(is_adapted(whole, "model.layers.1.self_attn.q_proj"));  // a whole path counts in any layer
}

TEST(PeftTargets, TheFirstPatternThatFitsAPathsEndSaysRankAndScale) {
  PeftConfig config = parse_peft_config(
      R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
          "rank_pattern": {"model.layers.1.self_attn.v_proj": 2, "v_proj": 4},
          "alpha_pattern": {"layers\\.[0-4]\\..*": 32, "q_proj": 1}})",
      "x");
  EXPECT_EQ(target_of(config, "model.layers.1.self_attn.v_proj"), (LoraTarget{2, 16.0}));
  EXPECT_EQ(target_of(config, "model.layers.2.self_attn.v_proj"), (LoraTarget{4, 8.0}));
  EXPECT_EQ(target_of(config, "model.layers.5.self_attn.v_proj"), (LoraTarget{4, 2.0}));
  EXPECT_EQ(target_of(config, "model.layers.5.self_attn.q_proj"), (LoraTarget{8, 0.125}));
  config.rslora = true;
  EXPECT_EQ(target_of(config, "model.layers.2.self_attn.v_proj"), (LoraTarget{4, 16.0}));
}

TEST(PeftTensors, AreWhatTheyAreUnderAnyName) {
  const std::string a = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight";
  for (const char* name :
       {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight", "model.layers.0.mlp.up_proj.lora_A.weight",
        "module.base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
        "_orig_mod.base_model.model.model.layers.0.mlp.up_proj.lora_A.x.weight",
        "base_model.model._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp.up_proj.lora_A.weight"}) {
    const PeftTensor tensor = parse_peft_tensor(name);
    EXPECT_EQ(tensor.kind, PeftTensorKind::LoraA) << name;
    EXPECT_EQ(tensor.param, a) << name;
  }
  EXPECT_EQ(parse_peft_tensor("x.lora_B.first.weight").adapter, "first");
  const struct {
    const char *name, *param;
    PeftTensorKind kind;
  } cases[] = {
      {"base_model.model.lm_head.weight", "lm_head.weight", PeftTensorKind::Whole},
      {"base_model.model.lm_head.modules_to_save.default.weight", "lm_head.weight", PeftTensorKind::Whole},
      {"base_model.model.model.layers.1.mlp.modules_to_save.default.up_proj.weight",
       "model.layers.1.mlp.up_proj.weight", PeftTensorKind::Whole},
      {"base_model.model.lm_head.original_module.weight", "lm_head.weight", PeftTensorKind::Base},
      {"base_model.model.model.layers.1.self_attn.q_proj.base_layer.bias", "model.layers.1.self_attn.q_proj.bias",
       PeftTensorKind::Base},
      {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", "model.embed_tokens.weight",
       PeftTensorKind::Tokens},
      {"base_model.model.model.embed_tokens.token_adapter.base_layer.weight", "model.embed_tokens.weight",
       PeftTensorKind::Base},
      {"base_model.model.model.embed_tokens.lora_embedding_A", "", PeftTensorKind::Other},
      {"base_model.model.x.lora_magnitude_vector", "base_model.model.x.lora_magnitude_vector",
       PeftTensorKind::Magnitude},
      {"_orig_mod.x.lora_magnitude_vector.default.weight", "base_model.model.x.lora_magnitude_vector",
       PeftTensorKind::Magnitude},
      {"x.lora_magnitude_vector.weight", "base_model.model.x.lora_magnitude_vector", PeftTensorKind::Magnitude},
      {"x.lora_magnitude_vector.a.b.weight", "", PeftTensorKind::Other},
      {"base_model.model.x.lora_B.bias", "", PeftTensorKind::Other},
      {"base_model.model.resampler.modules_to_save.default.query", "resampler.query", PeftTensorKind::Whole},
      {"base_model.model.resampler.query", "resampler.query", PeftTensorKind::Other},
      {"step", "step", PeftTensorKind::Other},
      {"", "", PeftTensorKind::Other},
      {"...", "...", PeftTensorKind::Other},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(parse_peft_tensor(c.name).kind, c.kind) << c.name;
    EXPECT_EQ(parse_peft_tensor(c.name).param, c.param) << c.name;
  }
}

}  // namespace
}  // namespace snug
