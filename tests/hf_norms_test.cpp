// Families whose norms or MLPs are not Llama's, from their keys.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "model/model_config.h"
#include "model/params.h"

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
}

// As transformers' StableLmConfig and CohereConfig have it.
TEST(HfConfig, HeadsOfLargeStableLmsAndCoheresHaveGainsOfTheirOwn) {
  Json config = parse_json(R"({"model_type": "stablelm", "hidden_size": 64, "intermediate_size": 16,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10,
      "layer_norm_eps": 0.25})",
                           "x");
  const auto spec = [&] { return parse(config.dump()).spec; };
  EXPECT_FALSE(spec().layers[1].own_head_gains || spec().layers[1].parallel);
  EXPECT_EQ(spec().layers[1].mlp_norm.weight, "post_attention_layernorm.weight");
  config["use_parallel_residual"] = config["qk_layernorm"] = true;
  EXPECT_TRUE(spec().layers[1].own_head_gains && spec().layers[1].parallel);
  EXPECT_EQ(spec().layers[1].mlp_norm.weight, "");
  EXPECT_EQ(spec().layers[1].key_norm.kind, NormKind::Layer);
  EXPECT_EQ(spec().layers[1].key_norm.epsilon, 0.25);
  EXPECT_EQ(spec().layers[1].key_norm.bias, "");
  const ParamTable table = full_parameters(spec(), true);
  const Norm& norm = table.layers[1].query_norm;
  EXPECT_EQ(norm.count, 4);
  EXPECT_EQ(norm.gains, 4);
  EXPECT_EQ(table[norm.gain + 3].name, "model.layers.1.self_attn.q_layernorm.norms.3.weight");
  EXPECT_TRUE(table[norm.gain + 3].joined && !table[norm.gain].joined && !table[norm.gain].decay);
  EXPECT_EQ(table[norm.gain + 3].initial, 1.0f);
  config["model_type"] = "cohere";
  for (const char* key : {"use_parallel_residual", "qk_layernorm"}) config.erase(key);
  EXPECT_FALSE(spec().layers[1].own_head_gains);
  config["use_qk_norm"] = true;
  const ParamTable cohere = full_parameters(spec(), true);
  const Norm& key_norm = cohere.layers[1].key_norm;
  EXPECT_EQ(key_norm.count, 1);
  EXPECT_EQ(key_norm.gains, 2);
  EXPECT_EQ(cohere[key_norm.gain].name, "model.layers.1.self_attn.k_norm.weight");
  EXPECT_EQ(cohere[key_norm.gain].shape, (Shape{2, 16}));
  config["model_type"] = "cohere2";
  EXPECT_TRUE(fails_with<UserError>(spec, "'use_qk_norm': found true, expected false or nothing"));
}

}  // namespace
}  // namespace snug
