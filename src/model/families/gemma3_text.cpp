// Gemma 3, its text models: Gemma with norms after each branch too, normed heads, and layers of two kinds: most see a
// window and have a rotary embedding of their own, every sixth sees all.
#include <cmath>

#include "model/families.h"

namespace snug::families {
namespace {

// Without layer_types every sliding_window_pattern-th layer sees all.
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
  const double scale = 1 / std::sqrt(json.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0));
  for (size_t i = 0; i < model.layers.size(); i++) {
    LayerSpec& layer = model.layers[i];
    layer.query_norm = {"self_attn.q_norm.weight", config.rms_norm_eps};
    layer.key_norm = {"self_attn.k_norm.weight", config.rms_norm_eps};
    layer.qkv.bias = layer.o.bias = json.boolean("attention_bias", false);
    layer.attention_scale = scale;
    layer.local_rope = sliding[i];
    if (sliding[i]) layer.window = window;
  }
  model.local_rope = local_rope(config, json);
  add_post_norms(model);
  become_gemma(model);
  return model;
}

}  // namespace

Family gemma3_text() {
  return {{.model_type = "gemma3_text",
           .architecture = "Gemma3ForCausalLM",
           .kv_heads = 4,
           .head_dim = 256,
           .max_position = 131072,
           .rope_theta = 1e6,
           .tie_word_embeddings = true,
           .bos = 2,
           .eos = 1,
           .gelu = true,
           // attn_logit_softcapping is read by the class and never applied.
           .own_keys = {"attention_bias", "attn_logit_softcapping", "rope_local_base_freq"}},
          spec};
}

}  // namespace snug::families
