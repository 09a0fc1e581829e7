// Cohere's Command R7B and Command A: Command-R with a window on three of four layers, and no rotary embedding on the
// others.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  become_cohere(model, json);
  require_whole_heads(config, json);
  const std::vector<bool> sliding = windows_but_every(json, model.layers.size(), 4);
  const int64_t window = window_of(json);
  for (size_t i = 0; i < model.layers.size(); i++) {
    LayerSpec& layer = model.layers[i];
    layer.window = sliding[i] ? window : 0;
    layer.rope = layer.window > 0;
  }
  return model;
}

}  // namespace

Family cohere2() {
  return {{.model_type = "cohere2",
           .architecture = "Cohere2ForCausalLM",
           .max_position = 8192,
           .rms_norm_eps = 1e-5,
           .tie_word_embeddings = true,
           .bos = 5,
           .eos = {255001},
           .epsilon_key = "layer_norm_eps",
           .own_keys = {"attention_bias", "logit_scale"}},
          spec};
}

}  // namespace snug::families
