// Mistral 7B v0.1 to v0.3, Nemo and Small 2501: Llama with a window on every layer.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_window_everywhere(model, json, window_of(json));
  return model;
}

}  // namespace

Family mistral() {
  return {{.model_type = "mistral",
           .architecture = "MistralForCausalLM",
           .kv_heads = 8,
           .max_position = 131072,
           .bos = 1,
           .eos = {2}},
          spec};
}

}  // namespace snug::families
