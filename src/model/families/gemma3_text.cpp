// Gemma 3, its text models: Gemma with norms after each branch too, normed heads, and layers of two kinds: most see a
// window and have a rotary embedding of their own, every sixth sees all.
#include "model/families.h"

namespace snug::families {
namespace {

// Returns which layers have a window; without layer_types every sliding_window_pattern-th layer has none.
std::vector<bool> layers_with_window(const JsonObject& json, size_t layers) {
  if (json.has("layer_types")) return sliding_layers(json, layers);
  const char* key = json.has("_sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
  const auto pattern = static_cast<size_t>(json.integer(key, 1, kMaxLayers, 6));
  std::vector<bool> sliding;
  for (size_t layer = 0; layer < layers; layer++) sliding.push_back((layer + 1) % pattern != 0);
  return sliding;
}

RopeParameters local_rope(const HfConfig& config, const JsonObject& json) {
  const double theta = json.number("rope_local_base_freq", 1, 1e12, 1e4);
  if (!has_rope_by_layers(json)) return {.theta = theta};
  return parse_rope(json, {.theta = theta}, config.head_dim, config.max_position, "sliding_attention");
}

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const std::vector<bool> sliding = layers_with_window(json, model.layers.size());
  const int64_t window = window_of(json);
  for (size_t i = 0; i < model.layers.size(); i++) {
    LayerSpec& layer = model.layers[i];
    layer.query_norm = {"self_attn.q_norm.weight", config.rms_norm_eps};
    layer.key_norm = {"self_attn.k_norm.weight", config.rms_norm_eps};
    layer.local_rope = sliding[i];
    if (sliding[i]) layer.window = window;
  }
  model.local_rope = local_rope(config, json);
  become_gemma2(model, json);
  return model;
}

}  // namespace

Family gemma3_text() {
  // attn_logit_softcapping is read by the class and never applied.
  HfFamily names = gemma_names("gemma3_text", "Gemma3ForCausalLM", 4, {"attn_logit_softcapping", "rope_parameters"});
  names.max_position = 131072;
  names.rope_theta = 1e6;
  return {std::move(names), spec};
}

}  // namespace snug::families
