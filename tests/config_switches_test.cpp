// Keys of config.json that some families' classes read and others pass over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace snug
