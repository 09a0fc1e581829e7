// CWM, the Code World Model: Llama with a window on all layers but the first of each four, and Llama 3.1's scaling of
// the rotary embedding.
#include "model/families.h"

namespace snug::families {
namespace {

constexpr double kTheta = 1000000;

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_biases(model, json);
  if (!json.has("rope_parameters") && !json.has("rope_scaling")) {
    // The class has a scaling of its own then, and passes over a base by itself.
    if (config.rope.theta != kTheta) json.fail("rope_theta", fmt::format("rope_scaling beside it, or {}", kTheta));
    model.rope = {.theta = kTheta,
                  .type = RopeType::Llama3,
                  .factor = 16,
                  .low_freq_factor = 1,
                  .high_freq_factor = 4,
                  .original_max_position = 8192};
  }
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
           .rope_theta = kTheta,
           .bos = 128000,
           .eos = {128001, 128008, 128009},
           .own_keys = {"mlp_bias"}},
          spec};
}

}  // namespace snug::families
