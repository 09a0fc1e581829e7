// Families of models, from keys of their configurations: their defaults are those of transformers' classes, and what
// they do not compute is refused by name.
#include <gtest/gtest.h>

#include "base/file.h"
#include "expect_error.h"
#include "model/model_config.h"
#include "model/params.h"

namespace snug {
namespace {

Json config_of(std::string_view model_type) {
  Json config = parse_json(R"({"hidden_size": 64, "intermediate_size": 16, "num_hidden_layers": 8,
      "num_attention_heads": 4, "vocab_size": 10})",
                           "x");
  config["model_type"] = model_type;
  return config;
}

ModelSpec spec_of(const Json& config) { return parse_model_config(config.dump(), "x").spec; }

void expect_refused(const Json& config, const std::string& message) {
  EXPECT_TRUE(fails_with<UserError>([&] { spec_of(config); }, message));
}

// Returns the layers of which something holds, by their numbers.
std::vector<size_t> layers_with(const ModelSpec& spec, const std::function<bool(const LayerSpec&)>& holds) {
  std::vector<size_t> found;
  for (size_t i = 0; i < spec.layers.size(); i++)
    if (holds(spec.layers[i])) found.push_back(i);
  return found;
}
bool has_window(const LayerSpec& layer) { return layer.window > 0; }
bool has_rope(const LayerSpec& layer) { return layer.rope; }

const std::vector<size_t> kThreeOfFour{0, 1, 2, 4, 5, 6}, kAll{0, 1, 2, 3, 4, 5, 6, 7}, kNone;

TEST(HfFamilies, Olmo2sNormsStandBehindItsBranches) {
  const ModelSpec spec = spec_of(config_of("olmo2"));
  const LayerSpec& layer = spec.layers[0];
  EXPECT_TRUE(layer.attention_norm.weight.empty() && layer.mlp_norm.weight.empty());
  EXPECT_EQ(layer.attention_post_norm.weight, "post_attention_layernorm.weight");
  EXPECT_EQ(layer.mlp_post_norm.weight, "post_feedforward_layernorm.weight");
  EXPECT_EQ(layer.attention_post_norm.epsilon, 1e-5);
  EXPECT_TRUE(layer.joint_head_norms);
  EXPECT_EQ(layer.heads.kv_heads, 4);
  EXPECT_EQ(spec.rope.theta, 1e4);
}

TEST(HfFamilies, Olmo3ScalesTheRopeOfItsFullLayersAlone) {
  Json config = config_of("olmo3");
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 8}, {"original_max_position_embeddings", 512}};
  config["rope_theta"] = 6e5;
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(layers_with(spec, has_window), kThreeOfFour);
  EXPECT_EQ(layers_with(spec, [](const LayerSpec& layer) { return layer.local_rope; }), kThreeOfFour);
  EXPECT_EQ(spec.layers[0].window, 4096);
  EXPECT_EQ(spec.rope.type, RopeType::Yarn);
  EXPECT_EQ(spec.rope.theta, 6e5);
  EXPECT_EQ(spec.local_rope.type, RopeType::Default);
  EXPECT_EQ(spec.local_rope.theta, 5e5) << "rope_theta is that of the full layers";
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  expect_refused(config, "'rope_parameters': found ");
}

TEST(HfFamilies, Exaone4sFullLayersHaveNoRopeWhereOthersHaveAWindow) {
  Json config = config_of("exaone4");
  config["num_attention_heads"] = 32;
  EXPECT_EQ(layers_with(spec_of(config), has_window), kThreeOfFour);
  EXPECT_EQ(layers_with(spec_of(config), has_rope), kThreeOfFour);
  EXPECT_EQ(spec_of(config).layers[0].heads.kv_heads, 32);
  EXPECT_EQ(spec_of(config).layers[0].query_norm.weight, "self_attn.q_norm.weight");
  EXPECT_FALSE(spec_of(config).layers[0].joint_head_norms);
  config["sliding_window_pattern"] = 2;
  EXPECT_EQ(layers_with(spec_of(config), has_window), (std::vector<size_t>{0, 2, 4, 6}));
  config["sliding_window_pattern"] = "LLLG";  // where layer_types say it, a pattern says nothing more
  expect_refused(config, "'sliding_window_pattern': found \"LLLG\"");
  config["layer_types"] = std::vector<std::string>(8, "full_attention");
  EXPECT_EQ(layers_with(spec_of(config), has_rope), kNone);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(layers_with(spec_of(config), has_rope), kAll);
  config["layer_types"][1] = "sliding_attention";
  expect_refused(config, "expected \"full_attention\" alone, as sliding_window is null");
  config.erase("layer_types");
  EXPECT_EQ(layers_with(spec_of(config), has_window), kNone);
  EXPECT_EQ(layers_with(spec_of(config), has_rope), kAll);
}

TEST(HfFamilies, Glm4Of2025NormsItsBranchesToo) {
  const ModelSpec spec = spec_of(config_of("glm4"));
  const LayerSpec& layer = spec.layers[0];
  EXPECT_EQ(layer.mlp_norm.weight, "post_attention_layernorm.weight");
  EXPECT_EQ(layer.attention_post_norm.weight, "post_self_attn_layernorm.weight");
  EXPECT_EQ(layer.mlp_post_norm.weight, "post_mlp_layernorm.weight");
  EXPECT_TRUE(layer.qkv.bias && layer.rope_interleaved);
  EXPECT_FALSE(layer.o.bias);
  EXPECT_EQ(spec.rope.dim, 64);
  EXPECT_EQ(layer.heads.kv_heads, 2);
}

TEST(HfFamilies, HunyuansBaseIsEnlargedByAlphaOnce) {
  Json config = config_of("hunyuan_v1_dense");
  config["rope_scaling"] = {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}};
  config["num_experts"] = 1;
  config["use_qk_norm"] = true;
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(spec.rope.type, RopeType::Default);
  EXPECT_NEAR(spec.rope.theta, 1e4 * std::pow(1000.0, 16.0 / 14.0), 1);
  EXPECT_TRUE(spec.layers[0].rope_before_norms);
  EXPECT_EQ(spec.layers[0].key_norm.weight, "self_attn.key_layernorm.weight");
  config["num_experts"] = 2;
  expect_refused(config, "'num_experts': found 2, expected 1 or nothing: a dense model");
  config.erase("num_experts");
  config["use_cla"] = true;
  expect_refused(config, "'use_cla': found true");
  config.erase("use_cla");
  config["model_type"] = "llama";
  config.erase("use_qk_norm");
  expect_refused(config, "'rope_scaling.alpha': found 1000.0, expected none beside type dynamic");
}

TEST(HfFamilies, CoheresBranchesReadOneNorm) {
  Json config = config_of("cohere");
  config["layer_norm_eps"] = 0.25;
  const ModelSpec spec = spec_of(config);
  EXPECT_TRUE(spec.layers[0].parallel && spec.layers[0].rope_interleaved && spec.tied);
  EXPECT_TRUE(spec.layers[0].mlp_norm.weight.empty() && spec.layers[0].attention_norm.bias.empty());
  EXPECT_EQ(spec.layers[0].attention_norm.kind, NormKind::Layer);
  EXPECT_EQ(spec.final_norm.epsilon, 0.25);
  EXPECT_EQ(spec.logits_factor, 0.0625);
  EXPECT_EQ(spec.rope.theta, 5e5);
  config["model_type"] = "cohere2";
  EXPECT_EQ(layers_with(spec_of(config), has_window), kThreeOfFour);
  EXPECT_EQ(layers_with(spec_of(config), has_rope), kThreeOfFour);
  config["head_dim"] = 32;
  expect_refused(config, "'head_dim': found 32, expected 16, as hidden_size and num_attention_heads say");
}

TEST(HfFamilies, Granite4WithoutMambaIsADenseModel) {
  Json config = config_of("granitemoehybrid");
  config["num_local_experts"] = 0;
  config["shared_intermediate_size"] = 24;
  config["layer_types"] = std::vector<std::string>(8, "attention");
  config["position_embedding_type"] = "rope";
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(spec.layers[0].gate_up.parts, (std::vector<LinearPart>{{"shared_mlp.input_linear", 48}}));
  EXPECT_EQ(spec.layers[0].down.in, 24);
  EXPECT_EQ(spec.layers[0].attention_scale, 1);
  EXPECT_EQ(layers_with(spec, has_rope), kAll);
  config.erase("position_embedding_type");
  EXPECT_EQ(layers_with(spec_of(config), has_rope), kNone);
  config["layer_types"][3] = "mamba";
  expect_refused(config, "expected \"attention\" for each of 8 layers: those with Mamba are not supported");
  config.erase("num_local_experts");
  expect_refused(config, "'num_local_experts': found nothing, expected 0: a dense model");
}

TEST(HfFamilies, Ministral3sQueriesGrow) {
  Json config = config_of("ministral3");
  config["num_attention_heads"] = 8;
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"factor", 16},
                               {"rope_theta", 1e6},
                               {"original_max_position_embeddings", 16384},
                               {"llama_4_scaling_beta", 0.1}};
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(spec.rope.query_growth, 0.1);
  EXPECT_EQ(spec.rope.original_max_position, 16384);
  EXPECT_EQ(spec.layers[0].window, 0);
  EXPECT_EQ(spec.layers[0].heads.dim, 128);
  config["rope_parameters"].erase("llama_4_scaling_beta");
  expect_refused(config, "'rope_parameters.llama_4_scaling_beta' is missing");
  config.erase("rope_parameters");  // its class has those of its first models
  EXPECT_EQ(spec_of(config).rope.query_growth, spec.rope.query_growth);
  EXPECT_EQ(spec_of(config).rope.original_max_position, 16384);
  EXPECT_EQ(spec_of(config).rope.theta, 1e6);
  EXPECT_EQ(spec_of(config).rope.factor, 16);
}

TEST(HfFamilies, AnUnknownTypeIsToldAllThatAreRead) {
  Json config = config_of("llama");
  config["model_type"] = "falcon";
  expect_refused(config,
                 "\"starcoder2\", or of images and texts \"gemma3\", \"mistral3\", \"qwen2_vl\", \"qwen2_5_vl\", ");
  expect_refused(config, "; --family takes it for one of the former, if it computes the same");
}

// As transformers' Starcoder2Config has it.
TEST(HfFamilies, StarCoder2sMlpHasNeitherGateNorUsualNames) {
  Json config = config_of("starcoder2");
  const ModelConfig parsed = parse_model_config(config.dump(), "x");
  const LayerSpec& layer = parsed.spec.layers[7];
  EXPECT_FALSE(layer.gated);
  EXPECT_EQ(layer.gate, Activation::GeluTanh);
  EXPECT_EQ(layer.gate_up.parts, (std::vector<LinearPart>{{"mlp.c_fc", 16}}));
  EXPECT_EQ(layer.down.parts, (std::vector<LinearPart>{{"mlp.c_proj", 64}}));
  EXPECT_TRUE(layer.qkv.bias && layer.o.bias && layer.gate_up.bias && layer.down.bias);
  EXPECT_EQ(layer.mlp_norm.kind, NormKind::Layer);
  EXPECT_EQ(layer.mlp_norm.bias, "post_attention_layernorm.bias");
  EXPECT_FALSE(layer.mlp_norm.plus_one);
  EXPECT_EQ(layer.mlp_norm.epsilon, 1e-5);
  EXPECT_EQ(layer.heads.kv_heads, 2);
  EXPECT_EQ(layer.heads.dim, 16);
  EXPECT_EQ(parsed.spec.rope.theta, 1e4);
  EXPECT_EQ(parsed.spec.positions, 4096);
  EXPECT_TRUE(parsed.spec.tied);
  EXPECT_EQ(layers_with(parsed.spec, has_window), kNone);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(layers_with(spec_of(config), has_window), kNone);
  config["sliding_window"] = 5;
  EXPECT_EQ(layers_with(spec_of(config), has_window), kAll);
  config["layer_types"] = std::vector<std::string>(8, "full_attention");  // which the class passes over
  expect_refused(config, "expected \"sliding_attention\" for every layer, as sliding_window says");
  config.erase("layer_types");
  config["use_bias"] = false;
  EXPECT_FALSE(spec_of(config).layers[0].qkv.bias || spec_of(config).layers[0].down.bias);
  config["norm_epsilon"] = 0.25;
  EXPECT_EQ(spec_of(config).final_norm.epsilon, 0.25);
  config["embedding_dropout"] = 0.1;
  EXPECT_EQ(parse_model_config(config.dump(), "x").dropout, std::vector<std::string>{"embedding_dropout 0.1"});
  config["hidden_act"] = "gelu";  // the exact one
  expect_refused(config, "'hidden_act': found \"gelu\", expected \"gelu_pytorch_tanh\"");
}

// As transformers' HeliumConfig has it.
TEST(HfFamilies, HeliumTurnsNeighboursAndHasNoBiasOnO) {
  Json config = config_of("helium");
  expect_refused(config,
                 "'num_key_value_heads': found nothing, expected a divisor of num_attention_heads, 4; "
                 "without the key helium has 20");
  config["num_key_value_heads"] = 2;
  expect_refused(config, "'head_dim': found nothing, expected 16, as hidden_size and num_attention_heads say");
  config["head_dim"] = 16;
  const ModelSpec spec = spec_of(config);
  const LayerSpec& layer = spec.layers[7];
  EXPECT_TRUE(layer.rope_interleaved && layer.gated);
  EXPECT_FALSE(layer.qkv.bias || layer.o.bias || layer.gate_up.bias || layer.down.bias || spec.tied);
  EXPECT_EQ(layer.mlp_norm.epsilon, 1e-8);
  EXPECT_EQ(layer.gate, Activation::Silu);
  EXPECT_EQ(spec.rope.theta, 1e5);
  EXPECT_EQ(spec.positions, 4096);
  config["attention_bias"] = true;
  EXPECT_TRUE(spec_of(config).layers[0].qkv.bias);
  EXPECT_FALSE(spec_of(config).layers[0].o.bias || spec_of(config).layers[0].down.bias);
  config["mlp_bias"] = true;
  EXPECT_TRUE(spec_of(config).layers[0].gate_up.bias && spec_of(config).layers[0].down.bias);
  config["num_attention_heads"] = 40;  // as many key heads as the class has
  config["hidden_size"] = 5120;
  for (const char* key : {"num_key_value_heads", "head_dim"}) config.erase(key);
  EXPECT_EQ(spec_of(config).layers[0].heads.kv_heads, 20);
  EXPECT_EQ(spec_of(config).layers[0].heads.dim, 128);
}

// As transformers' CwmConfig has it.
TEST(HfFamilies, TheFirstOfEachFourOfCwmsLayersSeesAll) {
  Json config = config_of("cwm");
  expect_refused(config,
                 "'num_key_value_heads': found nothing, expected a divisor of num_attention_heads, 4; "
                 "without the key cwm has 8");
  config["num_attention_heads"] = 16;
  config["vocab_size"] = 128009;
  const ModelConfig parsed = parse_model_config(config.dump(), "x");
  const ModelSpec& spec = parsed.spec;
  EXPECT_EQ(layers_with(spec, has_window), (std::vector<size_t>{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(spec.layers[1].window, 8192);
  EXPECT_EQ(spec.layers[0].heads.kv_heads, 8);
  EXPECT_EQ(spec.layers[0].heads.dim, 128);
  EXPECT_EQ(spec.layers[0].mlp_norm.epsilon, 1e-5);
  EXPECT_FALSE(spec.layers[0].qkv.bias || spec.layers[0].down.bias || spec.layers[0].local_rope || spec.tied);
  EXPECT_EQ(spec.positions, 131072);
  EXPECT_EQ(parsed.end_tokens, (std::vector<int64_t>{128001, 128008})) << "the class's third is beyond the vocabulary";
  EXPECT_EQ(spec.rope.type, RopeType::Llama3);
  EXPECT_EQ(spec.rope.theta, 1e6);
  EXPECT_EQ(spec.rope.factor, 16);
  EXPECT_EQ(spec.rope.low_freq_factor, 1);
  EXPECT_EQ(spec.rope.high_freq_factor, 4);
  EXPECT_EQ(spec.rope.original_max_position, 8192);
  config["rope_theta"] = 5e5;  // which the class passes over without a scaling
  expect_refused(config, "'rope_theta': found 500000.0, expected rope_scaling beside it, or 1000000");
  config["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(spec_of(config).rope.type, RopeType::Default);
  EXPECT_EQ(spec_of(config).rope.theta, 5e5);
  config.erase("rope_theta");
  EXPECT_EQ(spec_of(config).rope.theta, 1e6);
  config["mlp_bias"] = true;
  EXPECT_TRUE(spec_of(config).layers[0].gate_up.bias && spec_of(config).layers[0].down.bias);
  config["layer_types"] = std::vector<std::string>(8, "full_attention");
  config["layer_types"][4] = "sliding_attention";
  config["sliding_window"] = 5;
  EXPECT_EQ(layers_with(spec_of(config), has_window), (std::vector<size_t>{4}));
  EXPECT_EQ(spec_of(config).layers[4].window, 5);
  config["sliding_window"] = nullptr;
  expect_refused(config, "'sliding_window': found null, expected a number of tokens");
  config.erase("sliding_window");
  config["attention_bias"] = true;  // which the class passes over
  expect_refused(config, "'attention_bias': found true, expected false or nothing");
}

// As gemma-3-4b's config.json has it, which leaves out what its class has.
TEST(HfFamilies, AMultimodalModelsTextModelIsRead) {
  Json config{{"model_type", "gemma3"},
              {"architectures", {"Gemma3ForConditionalGeneration"}},
              {"torch_dtype", "bfloat16"},
              {"eos_token_id", {1, 106}},
              {"text_config",
               {{"model_type", "gemma3_text"},
                {"hidden_size", 2560},
                {"intermediate_size", 10240},
                {"num_hidden_layers", 34},
                {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                {"sliding_window", 1024}}},
              {"vision_config", {{"hidden_size", 1152}}}};
  const ModelConfig gemma = parse_model_config(config.dump(), "x");
  EXPECT_EQ(gemma.spec.architecture, "Gemma3ForConditionalGeneration");
  EXPECT_EQ(gemma.spec.embedding, "model.language_model.embed_tokens.weight");
  EXPECT_EQ(gemma.spec.final_norm.weight, "model.language_model.norm.weight");
  EXPECT_EQ(gemma.spec.prefix_of(3), "model.language_model.layers.3.");
  EXPECT_EQ(gemma.spec.vocabulary, 262208);
  EXPECT_EQ(gemma.spec.layers[0].heads.heads, 8);
  EXPECT_EQ(gemma.spec.layers[0].heads.kv_heads, 4);
  EXPECT_EQ(gemma.spec.layers[0].heads.dim, 256);
  EXPECT_EQ(gemma.spec.rope.factor, 8);
  EXPECT_TRUE(gemma.spec.tied);
  EXPECT_EQ(gemma.dtype, DType::BF16);
  EXPECT_EQ(gemma.end_tokens, (std::vector<int64_t>{1, 106}));
  EXPECT_EQ(gemma.notes.size(), 1u);
  config["text_config"]["hidden_size"] = -1;
  expect_refused(config, "x, text_config, key 'hidden_size': found -1");
  config.erase("text_config");
  expect_refused(config, "'text_config'");
  Json mistral{{"model_type", "mistral3"}, {"text_config", config_of("mistral")}};
  mistral["text_config"]["num_key_value_heads"] = 2;
  mistral["text_config"].erase("model_type");
  EXPECT_FALSE(spec_of(mistral).tied);
  EXPECT_EQ(spec_of(mistral).head, "lm_head.weight");
  EXPECT_EQ(spec_of(mistral).layers[0].window, 4096);
}

// In true sizes, from config.json alone.
TEST(HfFamilies, AModelHasAsManyParametersAsTransformersMakes) {
  const std::filesystem::path path = std::filesystem::path(SNUG_FIXTURES) / "hf_config/counts.json";
  const Json cases = parse_json(read_text(path, 1 << 20), path.string());
  EXPECT_EQ(cases.size(), 14u);
  for (const Json& one : cases)
    EXPECT_EQ(full_parameters(spec_of(one["config"]), false).count(false), one["parameters"].get<int64_t>())
        << one["config"]["model_type"];
}

}  // namespace
}  // namespace snug
