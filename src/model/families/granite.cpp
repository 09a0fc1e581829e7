// Granite 3: Llama with factors on embeddings, scores, branches and logits.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_biases(model, json);
  add_granite_factors(model, json);
  return model;
}

}  // namespace

Family granite() {
  return {{.model_type = "granite",
           .architecture = "GraniteForCausalLM",
           .bos = 1,
           .eos = {2},
           .own_keys = {"attention_bias", "mlp_bias", "embedding_multiplier", "residual_multiplier", "logits_scaling"}},
          spec};
}

}  // namespace snug::families
