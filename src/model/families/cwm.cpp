// CWM, the Code World Model: Llama with a window on all layers but the first of each four, and Llama 3.1's scaling of
// the rotary embedding.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_biases(model, json);
  // Beside rope_parameters, those of the class too, the class passes over a base.
  if (json.has("rope_parameters") && json.number("rope_theta", 1, 1e12, config.rope.theta) != config.rope.theta)
    json.fail("rope_theta", fmt::format("rope_scaling beside it, or {}", config.rope.theta));
  const int64_t window = window_of(json, 8192);
  if (window == 0) json.fail("sliding_window", "a number of tokens");
  std::vector<bool> sliding;
  for (size_t i = 0; i < model.layers.size(); i++) sliding.push_back(i % 4 != 0);
  if (json.has("layer_types")) sliding = sliding_layers(json, model.layers.size());
  for (size_t i = 0; i < model.layers.size(); i++) model.layers[i].window = sliding[i] ? window : 0;
  return model;
}

}  // namespace

Family cwm() {
  return {{.model_type = "cwm",
           .architecture = "CwmForCausalLM",
           .kv_heads = 8,
           .head_dim = 128,
           .max_position = 131072,
           .rms_norm_eps = 1e-5,
           .rope_theta = 1000000,
           .bos = 128000,
           .eos = {128001, 128008, 128009},
           .own_keys = {"mlp_bias"},
           .rope = R"({"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})"},
          spec};
}

}  // namespace snug::families
