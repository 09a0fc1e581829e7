// Nemotron 4 and Minitron: Llama with LayerNorms of gains 1 + weight, an MLP without a gate through ReLU squared, and a
// rotary embedding of half of each head.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  add_biases(model, json);
  leave_out_gates(model);
  become_layer_normed(model, true);
  return model;
}

}  // namespace

Family nemotron() {
  return {{.model_type = "nemotron",
           .architecture = "NemotronForCausalLM",
           .max_position = 4096,
           .rms_norm_eps = 1e-5,
           .partial_rotary_factor = 0.5,
           .bos = 2,
           .eos = {3},
           .activation = "relu2",
           .epsilon_key = "norm_eps",
           .own_keys = {"attention_bias", "mlp_bias", "partial_rotary_factor"}},
          spec};
}

}  // namespace snug::families
