// EXAONE 4: Llama whose norms stand behind attention and the MLP, with normed heads; the large ones have a window on
// most layers, and no rotary embedding on the others.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_head_norms(model, config);
  move_norms_behind(model);
  const int64_t window = window_of(json);
  if (window == 0 && !json.has("layer_types")) return model;
  const std::vector<bool> sliding = windows_but_every(json, model.layers.size(), 4);
  for (size_t i = 0; i < model.layers.size(); i++) {
    LayerSpec& layer = model.layers[i];
    if (sliding[i] && window == 0) json.fail("layer_types", "\"full_attention\" alone, as sliding_window is null");
    layer.window = sliding[i] ? window : 0;
    layer.rope = sliding[i] || window == 0;
  }
  return model;
}

}  // namespace

Family exaone4() {
  return {{.model_type = "exaone4",
           .architecture = "Exaone4ForCausalLM",
           .kv_heads = 32,
           .rms_norm_eps = 1e-5,
           .bos = 0,
           .eos = {2}},
          spec};
}

}  // namespace snug::families
