// Qwen2 and 2.5: Llama with biases on queries, keys and values, and in some layers a window.
#include "model/families.h"

namespace snug::families {
namespace {

// layer_types names the layers that have the window, or those from max_window_layers on have it. It is 4,096 tokens
// where the key is absent; there is none where it is null.
void add_windows(ModelSpec& model, const JsonObject& json) {
  const bool none = json.value().contains("sliding_window") && !json.has("sliding_window");
  if (!json.boolean("use_sliding_window", false) || none) return;
  const int64_t window = json.integer("sliding_window", 1, kMaxPosition, 4096);
  std::vector<bool> sliding(model.layers.size());
  if (json.has("layer_types")) {
    sliding = sliding_layers(json, model.layers.size());
  } else {
    const auto full = static_cast<size_t>(json.integer("max_window_layers", 0, kMaxLayers, 28));
    for (size_t layer = full; layer < sliding.size(); layer++) sliding[layer] = true;
  }
  for (size_t layer = 0; layer < sliding.size(); layer++) model.layers[layer].window = sliding[layer] ? window : 0;
}

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  for (LayerSpec& layer : model.layers) layer.qkv.bias = true;
  add_windows(model, json);
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
