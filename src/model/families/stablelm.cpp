// StableLM (3B, 2 1.6B and 12B, Zephyr 3B): Llama with LayerNorms, a rotary embedding of a quarter of each head, and
// biases on q, k and v where `use_qkv_bias` is. 2 12B has attention and MLP side by side (`use_parallel_residual`) and
// norms each head of queries and keys (`qk_layernorm`), whose gain is a tensor for each head.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  for (LayerSpec& layer : model.layers) layer.qkv.bias = json.boolean("use_qkv_bias", false);
  become_layer_normed(model, false);
  if (json.boolean("use_parallel_residual", false)) become_parallel(model);
  if (json.boolean("qk_layernorm", false))
    add_own_head_norms(model, config, "self_attn.q_layernorm.norms.{}.weight", "self_attn.k_layernorm.norms.{}.weight");
  return model;
}

}  // namespace

Family stablelm() {
  return {{.model_type = "stablelm",
           .architecture = "StableLmForCausalLM",
           .kv_heads = 32,
           .max_position = 4096,
           .rms_norm_eps = 1e-5,
           .partial_rotary_factor = 0.25,
           .bos = 0,
           .eos = {0},
           .epsilon_key = "layer_norm_eps",
           .own_keys = {"use_qkv_bias", "use_parallel_residual", "qk_layernorm", "partial_rotary_factor"}},
          spec};
}

}  // namespace snug::families
