// Granite 3: Llama with factors on embeddings, scores, branches and logits.
#include "model/families.h"

namespace snug::families {
namespace {

constexpr double kMostFactor = 1e6;

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_biases(model, json);
  const auto factor = [&](std::string_view key) { return json.number(key, 1 / kMostFactor, kMostFactor, 1.0); };
  model.embedding_factor = factor("embedding_multiplier");
  model.logits_factor = 1 / factor("logits_scaling");
  for (LayerSpec& layer : model.layers) {
    layer.attention_scale = factor("attention_multiplier");
    layer.residual_multiplier = factor("residual_multiplier");
  }
  return model;
}

}  // namespace

Family granite() {
  return {{.model_type = "granite",
           .architecture = "GraniteForCausalLM",
           .bos = 1,
           .eos = 2,
           .own_keys = {"attention_bias", "mlp_bias", "embedding_multiplier", "residual_multiplier", "logits_scaling"}},
          spec};
}

}  // namespace snug::families
