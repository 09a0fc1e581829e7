// Arcee's AFM: Llama with an MLP without a gate, through ReLU squared.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_biases(model, json);
  leave_out_gates(model);
  return model;
}

}  // namespace

Family arcee() {
  return {{.model_type = "arcee",
           .architecture = "ArceeForCausalLM",
           .max_position = 4096,
           .rms_norm_eps = 1e-5,
           .bos = 128000,
           .eos = {128001},
           .activation = "relu2",
           .own_keys = {"attention_bias", "mlp_bias"}},
          spec};
}

}  // namespace snug::families
