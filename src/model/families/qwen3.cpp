// Qwen3, the dense ones: Llama with a norm of each head of queries and keys, and in some layers a window.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_head_norms(model, config);
  for (LayerSpec& layer : model.layers) layer.qkv.bias = layer.o.bias = json.boolean("attention_bias", false);
  add_chosen_windows(model, json);
  return model;
}

}  // namespace

Family qwen3() {
  return {{.model_type = "qwen3",
           .architecture = "Qwen3ForCausalLM",
           .kv_heads = 32,
           .head_dim = 128,
           .max_position = 32768,
           .own_keys = {"attention_bias"}},
          spec};
}

}  // namespace snug::families
