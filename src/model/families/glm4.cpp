// GLM-4 and GLM-Z1 of April 2025 (0414): GLM-4 with norms behind attention and the MLP too.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  become_glm(model, json);
  for (LayerSpec& layer : model.layers) {
    layer.attention_post_norm = {"post_self_attn_layernorm.weight", config.rms_norm_eps};
    layer.mlp_post_norm = {"post_mlp_layernorm.weight", config.rms_norm_eps};
  }
  return model;
}

}  // namespace

Family glm4() {
  return {{.model_type = "glm4",
           .architecture = "Glm4ForCausalLM",
           .kv_heads = 2,
           .head_dim = 128,
           .max_position = 131072,
           .rms_norm_eps = 1.5625e-7,
           .partial_rotary_factor = 0.5,
           .own_keys = {"attention_bias", "partial_rotary_factor"}},
          spec};
}

}  // namespace snug::families
