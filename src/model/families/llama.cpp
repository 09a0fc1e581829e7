// Llama 1 to 3.3, and the many models that say that they are one.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_biases(model, json);
  return model;
}

}  // namespace

Family llama() {
  return {{.model_type = "llama",
           .architecture = "LlamaForCausalLM",
           .bos = 1,
           .eos = {2},
           .own_keys = {"attention_bias", "mlp_bias"}},
          spec};
}

}  // namespace snug::families
