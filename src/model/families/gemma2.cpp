// Gemma 2: Gemma with norms after each branch too, soft caps on scores and logits, and a window in every other layer.
#include <cmath>

#include "model/families.h"

namespace snug::families {
namespace {

// Returns the cap under `key`: the class's where it is absent, 0, none, where it is null.
double cap_of(const JsonObject& json, std::string_view key, double of_class) {
  if (json.value().contains(key) && !json.has(key)) return 0;
  return json.number(key, 1e-3, 1e6, of_class);
}

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const bool named = json.has("layer_types");
  const std::vector<bool> sliding =
      named ? sliding_layers(json, model.layers.size()) : std::vector<bool>(model.layers.size());
  const int64_t window = window_of(json);
  const double scale = 1 / std::sqrt(json.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0));
  const double cap = cap_of(json, "attn_logit_softcapping", 50);
  for (size_t i = 0; i < model.layers.size(); i++) {
    LayerSpec& layer = model.layers[i];
    layer.qkv.bias = layer.o.bias = json.boolean("attention_bias", false);
    layer.attention_scale = scale;
    layer.attention_cap = cap;
    if (named ? sliding[i] : i % 2 == 0) layer.window = window;
  }
  model.logits_cap = cap_of(json, "final_logit_softcapping", 30);
  add_post_norms(model);
  become_gemma(model);
  return model;
}

}  // namespace

Family gemma2() {
  return {{.model_type = "gemma2",
           .architecture = "Gemma2ForCausalLM",
           .kv_heads = 4,
           .head_dim = 256,
           .max_position = 8192,
           .tie_word_embeddings = true,
           .bos = 2,
           .eos = 1,
           .gelu = true,
           .own_keys = {"attention_bias", "attn_logit_softcapping", "final_logit_softcapping"}},
          spec};
}

}  // namespace snug::families
