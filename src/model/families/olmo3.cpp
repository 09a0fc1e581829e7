// OLMo 3: OLMo 2 with a window on three of four layers, and a scaled rotary embedding on the others alone.
#include "model/families.h"

namespace snug::families {
namespace {

constexpr double kTheta = 500000;

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  become_olmo2(model, config, json);
  if (json.has("rope_parameters") && !has_rope_by_layers(json))
    json.fail("rope_parameters", "an object for each type of layer");
  const std::vector<bool> sliding = windows_but_every(json, model.layers.size(), 4);
  const int64_t window = window_of(json);
  for (size_t i = 0; i < model.layers.size(); i++) {
    model.layers[i].local_rope = sliding[i];
    if (sliding[i]) model.layers[i].window = window;
  }
  model.local_rope = rope_of_windows(config, json, kTheta);
  return model;
}

}  // namespace

Family olmo3() {
  return {{.model_type = "olmo3",
           .architecture = "Olmo3ForCausalLM",
           .rms_norm_eps = 1e-5,
           .rope_theta = kTheta,
           .eos = {50279},
           .own_keys = {"attention_bias", "rope_parameters"}},
          spec};
}

}  // namespace snug::families
