#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/generation_config.h"
#include "format/side_files.h"
#include "model/families.h"
#include "model/model_config.h"
#include "model/params.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "hf_config";

std::string fixture(const char* name) { return read_text(kFixtures / name, 10000); }

// The file with one key changed.
std::string changed(const char* name, const std::string& key, const Json& value) {
  Json config = parse_json(fixture(name), name);
  config[key] = value;
  return config.dump();
}

ModelConfig parse(const std::string& json) { return parse_model_config(json, "x"); }

// The keys that all families share.
HfConfig shared_keys(const std::string& json) {
  std::vector<HfFamily> known;
  for (const Family& family : all_families()) known.push_back(family.config);
  const Json parsed = parse_json(json, "x");
  return parse_hf_config(JsonObject(parsed, "x"), known);
}

std::vector<int64_t> windows_of(const std::string& json) {
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : parse(json).spec.layers) windows.push_back(layer.window);
  return windows;
}

void expect_llama3(const std::string& json) {
  const HfConfig c = shared_keys(json);
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");
  EXPECT_THAT((std::vector{c.hidden_size, c.intermediate_size, c.layers, c.heads, c.kv_heads, c.head_dim, c.vocabulary,
                           c.max_position}),
              ElementsAre(2048, 8192, 16, 32, 8, 64, 128256, 131072));
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.rope.theta, 500000.0);
  EXPECT_EQ(c.rope.type, RopeType::Llama3);
  EXPECT_EQ(c.rope.factor, 8.0);
  EXPECT_EQ(c.rope.low_freq_factor, 1.0);
  EXPECT_EQ(c.rope.high_freq_factor, 4.0);
  EXPECT_EQ(c.rope.original_max_position, 8192);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_FALSE(parse(json).spec.layers[0].qkv.bias);
  EXPECT_EQ(c.bos, 128000);
  EXPECT_THAT(c.eos, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(c.dtype, DType::BF16);
}

TEST(HfConfig, ReadsLlama3AsTransformers5WritesIt) { expect_llama3(fixture("llama3_v5.json")); }

TEST(HfConfig, ReadsLlama3AsTransformers4WroteIt) { expect_llama3(fixture("llama3_v4.json")); }

TEST(HfConfig, ReadsQwen2AsEitherWritesIt) {
  for (const char* name : {"qwen2_v4.json", "qwen2_v5.json"}) {
    const HfConfig c = shared_keys(fixture(name));
    EXPECT_EQ(c.architecture, "Qwen2ForCausalLM");
    EXPECT_EQ(c.head_dim, 64);
    EXPECT_EQ(c.kv_heads, 2);
    EXPECT_EQ(c.rope.theta, 1e6);
    EXPECT_EQ(c.rope.type, RopeType::Default);
    const LayerSpec layer = parse(fixture(name)).spec.layers[0];
    EXPECT_TRUE(layer.qkv.bias);
    EXPECT_FALSE(layer.o.bias);
    EXPECT_THAT(c.eos, ElementsAre(151645));
  }
}

TEST(HfConfig, AbsentKeysHaveTransformersDefaults) {
  const HfConfig c = shared_keys(R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
      "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 10})");
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope.theta, 1e4);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.bos, 1);
  EXPECT_THAT(c.eos, ElementsAre(2));
  EXPECT_EQ(c.dtype, std::nullopt);
}

// An absent number is the class's own where it has one; null is as many as there are heads.
TEST(HfConfig, AbsentKeyValueHeadsAreThoseOfTheClass) {
  Json config = parse_json(fixture("qwen2_v4.json"), "x");
  const auto kv_heads = [&] { return parse(config.dump()).spec.layers[0].heads.kv_heads; };
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(kv_heads(), 14);
  config.erase("num_key_value_heads");
  EXPECT_TRUE(fails_with<UserError>(kv_heads,
                                    "key 'num_key_value_heads': found nothing, expected a divisor of "
                                    "num_attention_heads, 14; without the key qwen2 has 32"));
  config["num_attention_heads"] = 64;
  EXPECT_EQ(kv_heads(), 32);
  config["model_type"] = "llama";
  EXPECT_EQ(kv_heads(), 64);
}

// As transformers' Qwen2Config derives its layer_types.
TEST(HfConfig, LayersFromMaxWindowLayersOnSeeTheWindow) {
  Json config = parse_json(fixture("qwen2_v4.json"), "x");
  const auto windows = [&] { return windows_of(config.dump()); };
  EXPECT_EQ(windows(), std::vector<int64_t>(24)) << "not used";
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 24;
  EXPECT_EQ(windows(), std::vector<int64_t>(24));
  config["max_window_layers"] = 22;
  std::vector<int64_t> last_two(24);
  last_two[22] = last_two[23] = 32768;
  EXPECT_EQ(windows(), last_two);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(windows(), std::vector<int64_t>(24));
  config.erase("sliding_window");
  last_two[22] = last_two[23] = 4096;
  EXPECT_EQ(windows(), last_two);
}

TEST(HfConfig, LayerTypesSayWhichLayersSeeTheWindow) {
  Json config = parse_json(fixture("qwen2_v4.json"), "x");
  config["use_sliding_window"] = true;
  const auto fails = [&] { return fails_with<UserError>([&] { parse(config.dump()); }, "key 'layer_types'"); };
  config["layer_types"] = std::vector<std::string>(24, "full_attention");
  config["layer_types"][3] = "sliding_attention";
  std::vector<int64_t> fourth(24);
  fourth[3] = 32768;
  EXPECT_EQ(windows_of(config.dump()), fourth);
  config["layer_types"][4] = "chunked_attention";
  EXPECT_TRUE(fails());
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_TRUE(fails());
  config["layer_types"] = "sliding_attention";
  EXPECT_TRUE(fails());
}

TEST(HfConfig, PartOfAHeadTurnsWhereTheFileOrTheFamilySaysSo) {
  Json config = parse_json(R"({"model_type": "phi3", "hidden_size": 64, "intermediate_size": 16,
      "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10})",
                           "x");
  EXPECT_EQ(parse(config.dump()).spec.rope.dim, 0);
  config["partial_rotary_factor"] = 0.75;
  EXPECT_EQ(parse(config.dump()).spec.rope.dim, 12);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000}, {"partial_rotary_factor", 0.5}};
  const ModelSpec spec = parse(config.dump()).spec;
  EXPECT_EQ(spec.rope.dim, 8);
  EXPECT_THAT(linear_names(spec), ElementsAre("qkv_proj", "o_proj", "gate_up_proj", "down_proj"));
  config.erase("partial_rotary_factor");
  config.erase("rope_parameters");
  config["model_type"] = "glm";
  EXPECT_EQ(parse(config.dump()).spec.rope.dim, 64);  // of heads of 128
}

// As transformers' MistralConfig has it.
TEST(HfConfig, MistralHasItsWindowOnEveryLayer) {
  Json config = parse_json(R"({"model_type": "mistral", "hidden_size": 160, "intermediate_size": 16,
      "num_hidden_layers": 3, "num_attention_heads": 16, "vocab_size": 10})",
                           "x");
  const ModelSpec spec = parse(config.dump()).spec;
  EXPECT_EQ(spec.architecture, "MistralForCausalLM");
  EXPECT_EQ(spec.layers[0].heads.kv_heads, 8);
  EXPECT_EQ(spec.layers[0].heads.dim, 10);
  EXPECT_EQ(spec.positions, 131072);
  EXPECT_FALSE(spec.tied);
  EXPECT_THAT(parse(config.dump()).end_tokens, ElementsAre(2));
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(4096, 4096, 4096));
  config["head_dim"] = 128;
  EXPECT_EQ(parse(config.dump()).spec.layers[0].qkv.parts[0].rows, 16 * 128);
  config["sliding_window"] = 7;
  config["layer_types"] = std::vector<std::string>(3, "sliding_attention");
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(7, 7, 7));
  config["layer_types"][1] = "full_attention";
  EXPECT_TRUE(fails_with<UserError>([&] { parse(config.dump()); },
                                    "expected \"sliding_attention\" for every layer, as sliding_window says"));
  config.erase("layer_types");
  config["sliding_window"] = nullptr;
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(0, 0, 0));
  config["attention_bias"] = true;
  EXPECT_TRUE(fails_with<UserError>([&] { parse(config.dump()); }, "'attention_bias': found true, expected false"));
}

// As transformers' SmolLM3Config has it.
TEST(HfConfig, SmolLm3HasRopeAndWindowsByLayer) {
  Json config = parse_json(R"({"model_type": "smollm3", "hidden_size": 16, "intermediate_size": 16,
      "num_hidden_layers": 5, "num_attention_heads": 8, "vocab_size": 10})",
                           "x");
  const auto ropes = [&] {
    std::vector<int64_t> ropes;
    for (const LayerSpec& layer : parse(config.dump()).spec.layers) ropes.push_back(layer.rope);
    return ropes;
  };
  const auto fails = [&](const char* message) { return fails_with<UserError>([&] { parse(config.dump()); }, message); };
  EXPECT_THAT(ropes(), ElementsAre(1, 1, 1, 0, 1));
  const ModelSpec spec = parse(config.dump()).spec;
  EXPECT_EQ(spec.layers[0].heads.kv_heads, 4);
  EXPECT_EQ(spec.rope.theta, 2e6);
  EXPECT_EQ(spec.positions, 32768);
  EXPECT_TRUE(spec.tied);
  config["no_rope_layer_interval"] = 2;
  EXPECT_THAT(ropes(), ElementsAre(1, 0, 1, 0, 1));
  config["no_rope_layers"] = {0, 1, 1, 1, 0, 0};
  EXPECT_THAT(ropes(), ElementsAre(0, 1, 1, 1, 0)) << "the list may be longer";
  config["use_sliding_window"] = true;
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(0, 0, 0, 0, 0)) << "no window is named";
  config["sliding_window"] = 12;
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(12, 0, 0, 0, 12));
  config["layer_types"] = std::vector<std::string>(5, "full_attention");
  config["layer_types"][1] = "sliding_attention";
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(0, 12, 0, 0, 0));
  config["use_sliding_window"] = false;
  EXPECT_TRUE(fails("key 'layer_types'"));
  config["no_rope_layers"] = {1, 1, 1, 1};
  EXPECT_TRUE(fails("'no_rope_layers': found [1,1,1,1], expected 0 or 1 (with rotary embedding) for each of 5 layers"));
  config["no_rope_layers"] = {1, 1, 1, 2, 1};
  EXPECT_TRUE(fails("'no_rope_layers'"));
  config.erase("no_rope_layers");
  config["no_rope_layer_interval"] = 0;
  EXPECT_TRUE(fails("'no_rope_layer_interval': found 0"));
}

// As transformers' GraniteConfig has it: each factor is 1 where its key is absent, that of scores too.
TEST(HfConfig, GraniteHasFactors) {
  Json config = parse_json(R"({"model_type": "granite", "hidden_size": 16, "intermediate_size": 16,
      "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10})",
                           "x");
  const ModelSpec plain = parse(config.dump()).spec;
  EXPECT_EQ(plain.architecture, "GraniteForCausalLM");
  EXPECT_EQ(plain.layers[0].heads.kv_heads, 4);
  EXPECT_EQ(plain.layers[0].attention_scale, 1.0);
  EXPECT_EQ(plain.layers[0].residual_multiplier, 1.0);
  EXPECT_EQ(plain.embedding_factor, 1.0);
  EXPECT_EQ(plain.logits_factor, 1.0);
  config["attention_multiplier"] = 0.015625;
  config["residual_multiplier"] = 0.22;
  config["embedding_multiplier"] = 12;
  config["logits_scaling"] = 8;
  const ModelSpec spec = parse(config.dump()).spec;
  EXPECT_EQ(spec.layers[1].attention_scale, 0.015625);
  EXPECT_EQ(spec.layers[1].residual_multiplier, 0.22);
  EXPECT_EQ(spec.embedding_factor, 12.0);
  EXPECT_EQ(spec.logits_factor, 0.125);
  config["logits_scaling"] = 0;
  EXPECT_TRUE(fails_with<UserError>([&] { parse(config.dump()); }, "'logits_scaling': found 0"));
}

// As transformers' GemmaConfig has it, but that "gelu" is tanh's, as it was when Gemma was trained.
TEST(HfConfig, GemmasGateIsTanhGeluHoweverItIsSpelt) {
  Json config = parse_json(R"({"model_type": "gemma", "hidden_size": 16, "intermediate_size": 16,
      "num_hidden_layers": 2, "num_attention_heads": 16, "vocab_size": 10})",
                           "x");
  const auto spec = [&] { return parse(config.dump()).spec; };
  EXPECT_EQ(spec().layers[0].heads.dim, 256);
  EXPECT_EQ(spec().layers[0].heads.kv_heads, 16);
  EXPECT_TRUE(spec().tied);
  EXPECT_TRUE(spec().final_norm.plus_one && spec().layers[1].mlp_norm.plus_one);
  EXPECT_EQ(spec().embedding_factor, 4.0);
  for (const char* word : {"gelu", "gelu_pytorch_tanh"}) {
    config["hidden_act"] = word;
    EXPECT_EQ(spec().layers[0].gate, Activation::GeluTanh) << word;
  }
  config["hidden_activation"] = nullptr;
  EXPECT_EQ(spec().layers[0].gate, Activation::GeluTanh);
  config["hidden_activation"] = "gelu";
  EXPECT_TRUE(fails_with<UserError>(spec, "'hidden_activation': found \"gelu\", expected \"gelu_pytorch_tanh\""));
  config.erase("hidden_activation");
  config["hidden_act"] = "silu";
  EXPECT_TRUE(fails_with<UserError>(spec, "'hidden_act': found \"silu\", expected \"gelu_pytorch_tanh\""));
}

// As transformers' Gemma2Config has it.
TEST(HfConfig, Gemma2HasCapsAndAWindowInEveryOtherLayer) {
  Json config = parse_json(R"({"model_type": "gemma2", "hidden_size": 16, "intermediate_size": 16,
      "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 10, "hidden_act": "gelu_pytorch_tanh"})",
                           "x");
  const auto spec = [&] { return parse(config.dump()).spec; };
  const ModelSpec usual = spec();
  EXPECT_EQ(usual.layers[0].heads.kv_heads, 4);
  EXPECT_EQ(usual.layers[0].attention_scale, 0.0625);
  EXPECT_EQ(usual.layers[2].attention_cap, 50.0);
  EXPECT_EQ(usual.logits_cap, 30.0);
  EXPECT_EQ(usual.layers[0].mlp_post_norm.weight, "post_feedforward_layernorm.weight");
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(4096, 0, 4096));
  config["attn_logit_softcapping"] = nullptr;
  config["final_logit_softcapping"] = 20.0;
  EXPECT_EQ(spec().layers[0].attention_cap, 0.0);
  EXPECT_EQ(spec().logits_cap, 20.0);
  config["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(0, 4096, 0));
}

// As transformers' Gemma3TextConfig has it.
TEST(HfConfig, Gemma3HasTwoRopesAndWindowsByLayer) {
  Json config = parse_json(R"({"model_type": "gemma3_text", "hidden_size": 16, "intermediate_size": 16,
      "num_hidden_layers": 7, "num_attention_heads": 8, "vocab_size": 10})",
                           "x");
  const auto spec = [&] { return parse(config.dump()).spec; };
  const ModelSpec usual = spec();
  EXPECT_EQ(usual.architecture, "Gemma3ForCausalLM");
  EXPECT_EQ(usual.layers[0].heads.kv_heads, 4);
  EXPECT_EQ(usual.layers[0].heads.dim, 256);
  EXPECT_EQ(usual.layers[0].attention_scale, 0.0625);
  EXPECT_EQ(usual.layers[0].attention_post_norm.weight, "post_attention_layernorm.weight");
  EXPECT_TRUE(usual.layers[0].attention_post_norm.plus_one && usual.layers[0].query_norm.plus_one);
  EXPECT_EQ(usual.rope.theta, 1e6);
  EXPECT_EQ(usual.local_rope.theta, 1e4);
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(4096, 4096, 4096, 4096, 4096, 0, 4096));
  EXPECT_TRUE(usual.layers[0].local_rope && !usual.layers[5].local_rope);
  config["sliding_window"] = 512;
  config["sliding_window_pattern"] = 3;
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(512, 512, 0, 512, 512, 0, 512));
  config["layer_types"] = std::vector<std::string>(7, "full_attention");
  EXPECT_THAT(windows_of(config.dump()), ElementsAre(0, 0, 0, 0, 0, 0, 0));
  config["rope_theta"] = 5e5;  // as transformers 4 wrote it
  config["rope_local_base_freq"] = 2e4;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_EQ(spec().rope.theta, 5e5);
  EXPECT_EQ(spec().rope.factor, 8.0);
  EXPECT_EQ(spec().local_rope.theta, 2e4);
  EXPECT_EQ(spec().local_rope.type, RopeType::Default);
  config.erase("rope_scaling");  // and 5 does
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 7e5}}},
                               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}};
  EXPECT_EQ(spec().rope.theta, 7e5);
  EXPECT_EQ(spec().rope.factor, 4.0);
  EXPECT_EQ(spec().local_rope.theta, 3e4);
  config["rope_parameters"]["sliding_attention"].erase("rope_theta");
  EXPECT_EQ(spec().local_rope.theta, 2e4) << "not the top level's rope_theta";
  config["attn_logit_softcapping"] = 50.0;
  spec();
  config["final_logit_softcapping"] = 30.0;
  EXPECT_TRUE(fails_with<UserError>(spec, "'final_logit_softcapping': found 30.0, expected 0 or nothing"));
  config.erase("final_logit_softcapping");
  config["use_bidirectional_attention"] = true;
  EXPECT_TRUE(fails_with<UserError>(spec, "'use_bidirectional_attention': found true, expected false or nothing"));
  config.erase("use_bidirectional_attention");
  config["model_type"] = "llama";
  config["num_attention_heads"] = 2;
  config.erase("attn_logit_softcapping");
  EXPECT_TRUE(fails_with<UserError>(spec, "found an object of 2 keys, expected those of all layers"));
}

TEST(HfConfig, RefusesWhatSnugDoesNotCompute) {
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"model_type", "gpt2", "'model_type': found \"gpt2\", expected \""},
      {"architectures", Json::array({"LlamaForSequenceClassification"}), "one label: a model that gives a score"},
      {"architectures", "LlamaForCausalLM", "'architectures': found \"LlamaForCausalLM\", expected a list of names"},
      {"hidden_act", "gelu", "x, key 'hidden_act': found \"gelu\", expected \"silu\""},
      {"attention_bias", "yes", "'attention_bias': found \"yes\", expected true or false"},
      {"attention_dropout", 2.0, "'attention_dropout'"},
      {"embedding_multiplier", 12.0, "'embedding_multiplier': found 12.0, expected 1 or nothing"},
      {"final_logit_softcapping", 30.0, "expected 0 or nothing"},
      {"use_qk_norm", true, "expected false or nothing"},
      {"quantization_config", {{"bits", 4}}, "'quantization_config.quant_method': found nothing"},
      {"quantization_config",
       {{"quant_method", "hqq"}, {"bits", 4}},
       "'quantization_config.quant_method': found \"hqq\", expected \"bitsandbytes\", \"gptq\""},
      {"quantization_config", {{"quant_method", "bitsandbytes"}}, "expected either this or load_in_8bit"},
      {"quantization_config", {{"load_in_4bit", true}, {"load_in_8bit", true}}, "'quantization_config.load_in_4bit'"},
      {"quantization_config",
       {{"load_in_8bit", true}, {"llm_int8_skip_modules", "lm_head"}},
       "'quantization_config.llm_int8_skip_modules': found \"lm_head\", expected a list"},
      {"quantization_config", {{"load_in_4bit", true}}, "'quantization_config.bnb_4bit_quant_type': found nothing"},
      {"quantization_config",
       {{"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}, {"bnb_4bit_quant_storage", "bfloat16"}},
       "'quantization_config.bnb_4bit_quant_storage': found \"bfloat16\", expected \"uint8\""},
      {"quantization_config",
       {{"load_in_8bit", true}, {"llm_int8_has_fp16_weight", true}},
       "'quantization_config.llm_int8_has_fp16_weight': found true"},
      {"num_experts", 8, "'num_experts': found 8"},
      {"num_local_experts", 8, "'num_local_experts'"},
      {"partial_rotary_factor", 0.02,
       "'partial_rotary_factor': found 0.02, expected 1 or nothing beside rope_type llama3"},
      {"rope_scaling", {{"type", "linear"}}, "key 'rope_scaling.factor' is missing"},
      {"rope_scaling", {{"type", "xpos"}, {"factor", 2.0}}, "'rope_scaling.type': found \"xpos\""},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 0.5}}, "'rope_scaling.factor': found 0.5"},
      {"rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1}, {"beta_slow", 2}},
       "'rope_scaling.beta_fast': found 1, expected at least beta_slow, 2"},
      {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}, {"alpha", 1000.0}}, "'rope_scaling.alpha'"},
      {"rope_scaling", {{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}}, "'rope_scaling.mrope_section'"},
      {"rope_scaling",
       {{"rope_type", "longrope"}, {"short_factor", {1, 2}}, {"long_factor", {1, 2}}},
       "'rope_scaling.short_factor': found [1,2], expected a list of 32 numbers above 0"},
      {"rope_scaling", {{"rope_type", "llama3"}}, "key 'rope_scaling.factor' is missing"},
      {"torch_dtype", "int8", "'torch_dtype'"},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(fails_with<UserError>([&] { parse(changed("llama3_v4.json", c.key, c.value)); }, c.message));
  }
}

// What transformers' should_convert_module() says of these names.
TEST(HfConfig, ModulesLeftOutOfAQuantisationAreThoseThatTransformersLeavesOut) {
  const BnbQuantization nf4{.nf4 = true,
                            .left_out = {"lm_head", "model.layers.0.self_attn", "mlp.down_proj", "model.layers.2.*"}};
  EXPECT_FALSE(quantises(nf4, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(quantises(nf4, "model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(quantises(nf4, "model.layers.1.mlp.down_proj"));
  EXPECT_TRUE(quantises(nf4, "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(quantises(nf4, "model.layers.2.mlp.gate_proj"));
}

// As transformers' AutoModelForCausalLM, which does not look at architectures.
TEST(HfConfig, ModelTypeDecidesWhateverTheArchitectureIsCalled) {
  const auto named = [](const Json& names) { return parse(changed("qwen2_v4.json", "architectures", names)); };
  for (const Json& names : {Json::array({"CustomQwen32BForCausalLM"}), Json::array({"LLaMAForCausalLM"}),
                            Json::array({"Qwen2ForCausalLM", "Another"}), Json::array(), Json()})
    EXPECT_EQ(named(names).spec.architecture, "Qwen2ForCausalLM") << names;
  EXPECT_THAT(named(Json::array({"CustomQwen32BForCausalLM"})).notes,
              ElementsAre("config.json: architectures names 'CustomQwen32BForCausalLM'; model_type decides: qwen2"));
  EXPECT_TRUE(named(Json()).notes.empty());
  EXPECT_TRUE(named(Json::array({"Qwen2ForCausalLM"})).notes.empty());
}

// The head of such a model is its embedding, wherever it was saved from.
TEST(HfConfig, AModelWithoutItsHeadIsReadWhereThatIsItsEmbedding) {
  Json config = parse_json(changed("llama3_v4.json", "architectures", Json::array({"LlamaModel"})), "x");
  config["tie_word_embeddings"] = true;
  const ModelConfig read = parse(config.dump());
  config["tie_word_embeddings"] = false;
  EXPECT_TRUE(fails_with<UserError>([&] { parse(config.dump()); }, "in this one the head is missing"));
  EXPECT_TRUE(read.spec.tied);
  EXPECT_THAT(read.notes, ElementsAre("config.json: architectures names 'LlamaModel'; model_type decides: llama"));
}

TEST(HfConfig, KnownFamiliesAreNamed) {
  const HfFamily families[] = {{.model_type = "a", .architecture = "AForCausalLM"},
                               {.model_type = "b", .architecture = "BForCausalLM"},
                               {.model_type = "c", .architecture = "CForCausalLM"}};
  const auto refused = [&](const char* text, const char* message) {
    const Json json = parse_json(text, "x");
    return fails_with<UserError>([&] { parse_hf_config(JsonObject(json, "x"), families); }, message);
  };
  EXPECT_TRUE(
      refused(R"({"model_type": "d"})", "x, key 'model_type': found \"d\", expected \"a\", \"b\" or \"c\"; --family"));
  EXPECT_TRUE(refused("{}", "x, key 'model_type': found nothing, expected \"a\""));
  EXPECT_TRUE(refused(R"({"architectures": ["DForCausalLM"]})",
                      "expected [\"AForCausalLM\"], [\"BForCausalLM\"] or [\"CForCausalLM\"]"));
  EXPECT_TRUE(
      refused(R"({"architectures": ["BModel"]})",
              "a model with its language-model head (AForCausalLM, BForCausalLM, CForCausalLM): in this one the "
              "head is missing"));
}

TEST(HfConfig, WithoutModelTypeTheArchitectureDecides) {
  for (const char* name : {"LlamaForCausalLM", "LLaMAForCausalLM"}) {
    Json config = parse_json(changed("llama3_v4.json", "architectures", {name}), "x");
    config.erase("model_type");
    EXPECT_EQ(parse(config.dump()).spec.architecture, "LlamaForCausalLM");
    config["architectures"] = {"GPT2LMHeadModel"};
    EXPECT_TRUE(fails_with<UserError>([&] { parse(config.dump()); }, "found [\"GPT2LMHeadModel\"]"));
  }
}

TEST(HfConfig, DropoutIsForWhoTrains) {
  Json config = parse_json(fixture("llama3_v4.json"), "x");
  config["attention_dropout"] = 0.1;
  config["resid_pdrop"] = 0.25;
  config["hidden_dropout"] = 0.0;
  EXPECT_THAT(parse(config.dump()).dropout, ElementsAre("attention_dropout 0.1", "resid_pdrop 0.25"));
}

TEST(HfConfig, IdsBeyondTheVocabularyAreLeftOutWithANote) {
  Json config = parse_json(fixture("llama3_v4.json"), "x");
  config["bos_token_id"] = 128256;
  config["eos_token_id"] = {128001, 128300};
  const HfConfig c = shared_keys(config.dump());
  EXPECT_EQ(c.bos, std::nullopt);
  EXPECT_THAT(c.eos, ElementsAre(128001));
  EXPECT_THAT(c.notes,
              ElementsAre("config.json: bos_token_id 128256 is beyond the vocabulary of 128256 tokens and left out",
                          "config.json: eos_token_id 128300 is beyond the vocabulary of 128256 tokens and left out"));
}

TEST(HfConfig, LlamasBiasesAreOnAttentionOrMlp) {
  const LayerSpec attention = parse(changed("llama3_v4.json", "attention_bias", true)).spec.layers[0];
  EXPECT_TRUE(attention.qkv.bias && attention.o.bias);
  EXPECT_FALSE(attention.gate_up.bias || attention.down.bias);
  const LayerSpec mlp = parse(changed("llama3_v4.json", "mlp_bias", true)).spec.layers[0];
  EXPECT_FALSE(mlp.qkv.bias || mlp.o.bias);
  EXPECT_TRUE(mlp.gate_up.bias && mlp.down.bias);
}

TEST(HfConfig, NeutralValuesOfOtherFamiliesKeysPass) {
  Json config = parse_json(fixture("llama3_v4.json"), "x");
  for (const char* key : {"embedding_multiplier", "residual_multiplier", "logits_scaling"}) config[key] = 1.0;
  config["use_qk_norm"] = false;
  config["num_experts"] = 0;
  config["hidden_act"] = "swish";
  EXPECT_NO_THROW(parse(config.dump()));
}

TEST(HfConfig, RefusesNonsenseNumbers) {
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"hidden_size", 0, "'hidden_size': found 0, expected an integer from 1 to 1048576"},
      {"hidden_size", -8, "'hidden_size': found -8"},
      {"hidden_size", 2048.5, "'hidden_size'"},
      {"hidden_size", "2048", "'hidden_size'"},
      {"hidden_size", 18446744073709551615ull, "'hidden_size'"},
      {"num_hidden_layers", 1000000, "'num_hidden_layers'"},
      {"num_key_value_heads", 5, "'num_key_value_heads': found 5, expected a divisor of num_attention_heads, 32"},
      {"head_dim", 63, "'head_dim': found 63, expected an even number"},
      {"vocab_size", int64_t{1} << 40, "'vocab_size'"},
      {"rms_norm_eps", 0, "'rms_norm_eps'"},
      {"rope_theta", -1.0, "'rope_theta'"},
      {"eos_token_id", int64_t{1} << 40, "'eos_token_id'"},
      {"eos_token_id", Json::array({-1}), "expected ids from 0 to 128255"},
      {"tie_word_embeddings", "yes", "expected true or false"},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(fails_with<UserError>([&] { parse(changed("llama3_v4.json", c.key, c.value)); }, c.message));
  }
  EXPECT_TRUE(fails_with<UserError>([&] { parse("{\"model_type\": \"llama\"}"); }, "x: key 'hidden_size' is missing"));
}

TEST(HfConfig, BrokenJsonNamesItsPlace) {
  EXPECT_TRUE(fails_with<UserError>([] { parse_model_config("{\n \"a\": 1,\n}", "c.json"); },
                                    "c.json, line 3, column 1: expected JSON: syntax error"));
  EXPECT_TRUE(
      fails_with<UserError>([] { parse_model_config("{\"a\": 1, \"a\": 2}", "c.json"); }, "found key \"a\" twice"));
  EXPECT_TRUE(fails_with<UserError>([] { parse_model_config("{\"a\": \"\xff\"}", "c.json"); },
                                    "c.json, column 8: expected JSON"));
  EXPECT_TRUE(fails_with<UserError>([] { parse_model_config("{\"a\": 1e999}", "c.json"); }, "c.json"));
  try {
    parse_model_config("{\"a\": \"" + std::string(100000, 'b'), "c.json");
    ADD_FAILURE() << "a string without an end";
  } catch (const UserError& error) {
    EXPECT_LT(std::string(error.what()).size(), 500u) << "what was read is quoted in part";
    EXPECT_THAT(error.what(), testing::HasSubstr("bbb ... bbb"));
  }
  const std::string deep = std::string(100000, '[');
  EXPECT_TRUE(fails_with<UserError>([&] { parse_model_config(deep, "c.json"); }, "more than 64 levels"));
}

// A corrupted byte gives a UserError or another valid config, never anything else.
TEST(HfConfig, SurvivesEveryCorruptedByte) {
  const std::string whole = fixture("llama3_v5.json");
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\0', '"', '9', '-', '}', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = byte;
      try {
        parse(damaged);
      } catch (const UserError&) {
      }
    }
  }
}

TEST(ModelDirectory, GenerationConfigSaysWhatEndsAReply) {
  const TempDirectory directory;
  write_text(directory.path() / "config.json", fixture("qwen2_v4.json"));
  EXPECT_THAT(read_model_config(directory.path()).end_tokens, ElementsAre(151645));
  write_text(directory.path() / "generation_config.json", R"({"eos_token_id": [151645, 151643]})");
  EXPECT_THAT(read_model_config(directory.path()).end_tokens, ElementsAre(151645, 151643));
  write_text(directory.path() / "generation_config.json", R"({"eos_token_id": 151936})");
  const ModelConfig c = read_model_config(directory.path());
  EXPECT_THAT(c.end_tokens, ElementsAre(151645)) << "config.json's";
  EXPECT_THAT(c.notes, ElementsAre("generation_config.json: eos_token_id 151936 is beyond the vocabulary of 151936 "
                                   "tokens and left out"));
  std::vector<std::string> notes;
  EXPECT_EQ(parse_generation_config("{}", "x", 10, notes), std::nullopt);
  EXPECT_THAT(side_files(directory.path()), ElementsAre("config.json", "generation_config.json"));
}

TEST(ModelDirectory, WithoutConfigIsTheUsersError) {
  const TempDirectory directory;
  EXPECT_TRUE(fails_with<UserError>([&] { read_model_config(directory.path()); }, "config.json: cannot open"));
  EXPECT_TRUE(side_files(directory.path()).empty());
}

}  // namespace
}  // namespace snug
