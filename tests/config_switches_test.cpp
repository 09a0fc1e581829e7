// Keys of config.json that some families' classes read and others pass over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "expect_error.h"
#include "format/json.h"
#include "model/families.h"
#include "model/model_config.h"

namespace snug {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Json config_of(const std::string& type) {
  return {{"model_type", type},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", 64},
          {"vocab_size", 40},
          {"rms_norm_eps", 1e-6},
          {"head_dim", 16}};
}

ModelConfig read(const Json& config, std::string_view family = "") {
  return parse_model_config(config.dump(), "config.json", family);
}

// What transformers' classes make of it: of the families' only these have a compute_default_rope_parameters() that
// reads the factor.
TEST(ConfigSwitches, ShareOfHeadsThatTurnsIsReadWhereTheClassReadsIt) {
  const std::vector<std::string_view> readers{"glm", "glm4", "nemotron", "phi3", "stablelm"};
  int families = 0;
  for (const char* type : {"arcee", "ernie4_5", "glm", "glm4", "granite", "helium", "llama", "mistral", "nemotron",
                           "olmo2", "phi3", "qwen2", "qwen3", "seed_oss", "stablelm", "starcoder2"}) {
    const bool reads = std::ranges::find(readers, type) != readers.end();
    for (const bool nested : {false, true}) {
      Json config = config_of(type);
      if (nested)
        config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 0.75}};
      else
        config["partial_rotary_factor"] = 0.75;
      const ModelConfig found = read(config);
      EXPECT_EQ(found.spec.rope.dim, reads ? 12 : 0) << type;
      const std::string note = fmt::format(
          "config.json: passed over, as transformers does: partial_rotary_factor 0.75; a {} turns whole heads", type);
      EXPECT_EQ(std::ranges::count(found.notes, note), reads ? 0 : 1) << type;
    }
    families++;
  }
  EXPECT_EQ(families, 16);
}

TEST(ConfigSwitches, ShareOfHeadsThatTurnsIsOfNoWindowEither) {
  Json config = config_of("gemma3_text");
  config["query_pre_attn_scalar"] = 16;
  config["layer_types"] = {"sliding_attention", "full_attention"};
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}},
                               {"sliding_attention", {{"rope_type", "default"}}}};
  EXPECT_EQ(read(config).spec.rope.dim, 0);
  EXPECT_THAT(read(config).notes, Contains(HasSubstr("partial_rotary_factor 0.5; a gemma3_text turns whole heads")));
  config["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(read(config).spec.local_rope.dim, 0);
}

TEST(ConfigSwitches, ShareOfHeadsBesideAScaledRopeIsRefusedOrRead) {
  const Json yarn{{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4}, {"partial_rotary_factor", 0.5}};
  Json llama = config_of("llama"), phi = config_of("phi3");
  llama["rope_parameters"] = phi["rope_parameters"] = yarn;
  EXPECT_TRUE(fails_with<UserError>(
      [&] { read(llama); }, "key 'partial_rotary_factor': found 0.5, expected 1 or nothing beside rope_type yarn"));
  EXPECT_EQ(read(phi).spec.rope.dim, 8);
  phi["rope_parameters"]["partial_rotary_factor"] = 0.02;
  EXPECT_TRUE(fails_with<UserError>([&] { read(phi); },
                                    "'rope_parameters.partial_rotary_factor': found 0.02, expected a share of the 16 "
                                    "elements of a head that is an even number"));
  llama["rope_parameters"]["partial_rotary_factor"] = 1;
  EXPECT_EQ(read(llama).spec.rope.dim, 0);
  EXPECT_TRUE(read(llama).notes.empty());
}

struct Found {
  const char *key, *value, *plain;  // JSON
};

// A model of an unknown type whose configuration says more than the family reads.
TEST(ConfigSwitches, OfOtherFamiliesAreRefusedInAModelOfUnknownType) {
  const std::string scale = fmt::format("{}", 1 / std::sqrt(16.0));
  for (const auto& [key, value, plain] : std::vector<Found>{
           {"sliding_window", "8", "null"},
           {"use_sliding_window", "true", "false"},
           {"sliding_window_pattern", "6", "0"},
           {"_sliding_window_pattern", "6", "null"},
           {"sliding_window_pattern", "\"LLLG\"", "null"},
           {"rope_local_base_freq", "10000.0", "null"},
           {"layer_types", R"(["sliding_attention", "full_attention"])", R"(["full_attention", "full_attention"])"},
           {"no_rope_layers", "[1, 0]", "[1, 1]"},
           {"no_rope_layer_interval", "4", "null"},
           {"position_embedding_type", "\"nope\"", "\"rope\""},
           {"query_pre_attn_scalar", "24", "16"},
           {"attention_multiplier", "1.0", scale.c_str()},
           {"partial_rotary_factor", "0.5", "1.0"},
           {"use_cla", "true", "false"},
           {"hidden_activation", "\"gelu_pytorch_tanh\"", "\"silu\""},
           {"layer_norm_eps", "1e-5", "1e-6"},
           {"norm_eps", "1e-5", "1e-6"},
           {"residual_multiplier", "0.5", "1.0"},
           {"final_logit_softcapping", "30.0", "null"},
           {"logit_scale", "0.5", "1.0"},
           {"use_parallel_residual", "true", "false"}}) {
    Json config = config_of("vicuna_next");
    config[key] = Json::parse(value);
    EXPECT_TRUE(
        fails_with<UserError>([&] { read(config, "llama"); },
                              fmt::format("config.json, key '{}': found {}, expected", key, config[key].dump())))
        << key;
    config[key] = Json::parse(plain);
    EXPECT_NO_THROW(read(config, "llama")) << key;
  }
}

// A family's own configurations, as transformers writes them, hold nothing that it would refuse under another name.
TEST(ConfigSwitches, OfAFamilysOwnFilesAreNotRefused) {
  int files = 0;
  for (const auto& model : std::filesystem::directory_iterator(std::filesystem::path(SNUG_FIXTURES) / "models")) {
    if (!std::filesystem::exists(model.path() / "config.json")) continue;
    Json config = Json::parse(read_text(model.path() / "config.json", 1 << 20));
    const std::string type = config["model_type"];
    if (config.contains("vision_config")) continue;
    const ModelSpec own = read(config).spec;
    config["model_type"] = "vicuna_next";
    config.erase("architectures");
    const ModelSpec foreign = read(config, type).spec;
    EXPECT_EQ(foreign.architecture, own.architecture) << model.path();
    EXPECT_EQ(foreign.rope.dim, own.rope.dim) << model.path();
    files++;
  }
  EXPECT_GE(files, 30);
}

TEST(ConfigSwitches, OfRotaryEmbeddingsAreRefusedWithinTheirObject) {
  Json config = config_of("vicuna_next");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}, {"llama_4_scaling_beta", 0.1}};
  EXPECT_TRUE(fails_with<UserError>([&] { read(config, "mistral"); },
                                    "key 'rope_parameters.llama_4_scaling_beta': found 0.1, expected 0 or nothing with "
                                    "--family mistral, which does not read it"));
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}};
  EXPECT_TRUE(fails_with<UserError>([&] { read(config, "llama"); }, "key 'rope_parameters.partial_rotary_factor'"));
  EXPECT_EQ(read(config, "phi3").spec.rope.dim, 8);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}, {"spin", 3}};
  EXPECT_THAT(read(config, "llama").notes, Contains(HasSubstr("keys that are not read: rope_parameters.spin")));
}

// A window that the configuration switches off, or that the family reads.
TEST(ConfigSwitches, ThatAreOffOrReadAreNotRefused) {
  Json config = config_of("vicuna_next");
  config["sliding_window"] = 8;
  config["max_window_layers"] = 1;
  config["sliding_window_pattern"] = 6;
  EXPECT_TRUE(fails_with<UserError>([&] { read(config, "llama"); }, "key 'sliding_window'"));
  config["use_sliding_window"] = false;
  EXPECT_NO_THROW(read(config, "llama"));
  EXPECT_NO_THROW(read(config, "qwen2"));
  config["use_sliding_window"] = true;
  config.erase("sliding_window_pattern");
  EXPECT_EQ(read(config, "qwen2").spec.layers[1].window, 8);
  config.erase("use_sliding_window");
  EXPECT_EQ(read(config, "mistral").spec.layers[0].window, 8);
  config["no_rope_layers"] = {1, 0};
  config["no_rope_layer_interval"] = 4;
  config["use_sliding_window"] = false;
  EXPECT_FALSE(read(config, "smollm3").spec.layers[1].rope);
}

}  // namespace
}  // namespace snug
