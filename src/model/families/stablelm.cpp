// StableLM (3B, 2 1.6B, Zephyr 3B): Llama with LayerNorms, a rotary embedding of a quarter of each head, and biases on
// q, k and v where `use_qkv_bias` is. Attention and MLP side by side (2 12B's use_parallel_residual) are refused by
// name.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  for (LayerSpec& layer : model.layers) layer.qkv.bias = json.boolean("use_qkv_bias", false);
  become_layer_normed(model, false);
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
           .eos = 0,
           .epsilon_key = "layer_norm_eps",
           .own_keys = {"use_qkv_bias"}},
          spec};
}

}  // namespace snug::families
