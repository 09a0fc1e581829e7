// Qwen2 and 2.5: Llama with biases on queries, keys and values, and in some layers a window.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  for (LayerSpec& layer : model.layers) layer.qkv.bias = true;
  add_chosen_windows(model, json);
  return model;
}

}  // namespace

Family qwen2() {
  return {{.model_type = "qwen2",
           .architecture = "Qwen2ForCausalLM",
           .kv_heads = 32,
           .max_position = 32768,
           .own_keys = {"attention_bias", "mlp_bias"}},  // transformers' class reads neither
          spec};
}

}  // namespace snug::families
