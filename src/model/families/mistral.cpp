// Mistral 7B v0.1 to v0.3, Nemo and Small 2501: Llama with a window on every layer.
#include <algorithm>

#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const int64_t window = window_of(json);
  for (LayerSpec& layer : model.layers) layer.window = window;
  // The class passes over layer_types; a file in which layers differ is of another family.
  if (json.has("layer_types")) {
    const std::vector<bool> sliding = sliding_layers(json, model.layers.size());
    if (std::ranges::find(sliding, window == 0) != sliding.end())
      json.fail("layer_types", fmt::format("\"{}\" for every layer, as sliding_window says",
                                           window == 0 ? "full_attention" : "sliding_attention"));
  }
  return model;
}

}  // namespace

Family mistral() {
  return {{.model_type = "mistral",
           .architecture = "MistralForCausalLM",
           .kv_heads = 8,
           .max_position = 131072,
           .bos = 1,
           .eos = 2},
          spec};
}

}  // namespace snug::families
