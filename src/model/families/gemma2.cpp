// Gemma 2: Gemma with norms after each branch too, soft caps on scores and logits, and a window in every other layer.
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
  const double cap = cap_of(json, "attn_logit_softcapping", 50);
  for (size_t i = 0; i < model.layers.size(); i++) {
    model.layers[i].attention_cap = cap;
    if (named ? sliding[i] : i % 2 == 0) model.layers[i].window = window;
  }
  model.logits_cap = cap_of(json, "final_logit_softcapping", 30);
  become_gemma2(model, json);
  return model;
}

}  // namespace

Family gemma2() {
  return {gemma_names("gemma2", "Gemma2ForCausalLM", 4, {"attn_logit_softcapping", "final_logit_softcapping"}), spec};
}

}  // namespace snug::families
