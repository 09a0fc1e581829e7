// Hunyuan, dense: Llama with a norm of each head of queries and keys behind the rotary embedding, whose base is
// enlarged by a fixed `alpha`.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const bool bias = json.boolean("attention_bias", false);
  for (LayerSpec& layer : model.layers) {
    layer.query_norm = {"self_attn.query_layernorm.weight", config.rms_norm_eps};
    layer.key_norm = {"self_attn.key_layernorm.weight", config.rms_norm_eps};
    layer.rope_before_norms = true;
    layer.qkv.bias = layer.o.bias = bias;
  }
  // Keys that files have and the class passes over, as it computes one thing.
  if (!json.boolean("use_qk_norm", true)) json.fail("use_qk_norm", "true or nothing");
  if (json.boolean("use_cla", false)) json.fail("use_cla", "false or nothing");
  if (json.integer("num_experts", 0, kMaxLayers, 1) > 1) json.fail("num_experts", "1 or nothing: a dense model");
  return model;
}

}  // namespace

Family hunyuan_v1_dense() {
  return {{.model_type = "hunyuan_v1_dense",
           .architecture = "HunYuanDenseV1ForCausalLM",
           .rms_norm_eps = 1e-5,
           .rope_alpha = true,
           .bos = 1,
           .eos = {2},
           .own_keys = {"attention_bias", "use_qk_norm", "num_experts"}},
          spec};
}

}  // namespace snug::families
