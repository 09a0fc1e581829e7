// Gemma 3, its text models: Gemma with norms after each branch too, normed heads, and layers of two kinds: most see a
// window and have a rotary embedding of their own, every sixth sees all.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_head_norms(model, config);
  const char* key = json.has("_sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
  const std::vector<bool> sliding = windows_but_every(json, model.layers.size(), 6, key);
  const int64_t window = window_of(json);
  for (size_t i = 0; i < model.layers.size(); i++) {
    LayerSpec& layer = model.layers[i];
    layer.local_rope = sliding[i];
    if (sliding[i]) layer.window = window;
  }
  model.local_rope = rope_of_windows(config, json, json.number("rope_local_base_freq", 1, 1e12, 1e4));
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
