// Families whose norms or MLPs are not Llama's, from their keys.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "model/model_config.h"

namespace snug {
namespace {

ModelConfig parse(const std::string& json) { return parse_model_config(json, "x"); }

// As transformers' NemotronConfig, ArceeConfig and StableLmConfig have it.
TEST(HfConfig, NemotronArceeAndStableLmSayTheirNormsAndMlps) {
  Json config = parse_json(R"({"model_type": "nemotron", "hidden_size": 64, "intermediate_size": 16,
      "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10, "hidden_act": "relu2", "norm_eps": 0.5})",
                           "x");
  const auto spec = [&] { return parse(config.dump()).spec; };
  const ModelSpec nemotron = spec();
  const LayerSpec& layer = nemotron.layers[1];
  EXPECT_EQ(layer.mlp_norm.kind, NormKind::Layer);
  EXPECT_EQ(layer.mlp_norm.bias, "post_attention_layernorm.bias");
  EXPECT_EQ(nemotron.final_norm.bias, "model.norm.bias");
  EXPECT_EQ(nemotron.final_norm.epsilon, 0.5);
  EXPECT_TRUE(nemotron.final_norm.plus_one && layer.attention_norm.plus_one);
  EXPECT_FALSE(layer.gated);
  EXPECT_EQ(layer.gate, Activation::ReluSquared);
  EXPECT_EQ(layer.gate_up.parts, (std::vector<LinearPart>{{"mlp.up_proj", 16}}));
  EXPECT_EQ(nemotron.rope.dim, 8);
  config["hidden_act"] = "silu";
  EXPECT_TRUE(fails_with<UserError>(spec, "'hidden_act': found \"silu\", expected \"relu2\""));
  config.erase("hidden_act");
  config["model_type"] = "arcee";
  EXPECT_EQ(spec().layers[0].mlp_norm.kind, NormKind::Rms);
  EXPECT_EQ(spec().layers[0].mlp_norm.epsilon, 1e-5);
  EXPECT_FALSE(spec().layers[0].gated);
  config["model_type"] = "stablelm";
  config["num_attention_heads"] = 32;
  config["head_dim"] = 16;
  config["layer_norm_eps"] = 0.25;
  EXPECT_TRUE(spec().layers[0].gated);
  EXPECT_EQ(spec().layers[0].gate, Activation::Silu);
  EXPECT_EQ(spec().layers[0].heads.kv_heads, 32);
  EXPECT_EQ(spec().layers[0].mlp_norm.epsilon, 0.25);
  EXPECT_FALSE(spec().layers[0].mlp_norm.plus_one);
  EXPECT_EQ(spec().rope.dim, 4);
  EXPECT_FALSE(spec().layers[0].qkv.bias);
  config["use_qkv_bias"] = true;
  EXPECT_TRUE(spec().layers[0].qkv.bias);
  config["use_parallel_residual"] = true;
  EXPECT_TRUE(fails_with<UserError>(spec, "'use_parallel_residual': found true, expected false or nothing"));
}

}  // namespace
}  // namespace snug
