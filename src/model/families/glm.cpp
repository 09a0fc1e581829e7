// GLM-4 (the 9B of 2024): Llama with biases on q, k and v, gate and up as one linear in the files, and a rotary
// embedding that turns neighbours in the first half of each head.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  become_glm(model, json);
  return model;
}

}  // namespace

Family glm() {
  return {{.model_type = "glm",
           .architecture = "GlmForCausalLM",
           .kv_heads = 2,
           .head_dim = 128,
           .max_position = 131072,
           .rms_norm_eps = 1.5625e-7,
           .partial_rotary_factor = 0.5,
           .own_keys = {"attention_bias", "partial_rotary_factor"}},
          spec};
}

}  // namespace snug::families
