// OLMo 2: Llama whose norms stand behind attention and the MLP, not before them, with norms of all queries and of all
// keys, each as one row.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  become_olmo2(model, config, json);
  return model;
}

}  // namespace

Family olmo2() {
  return {{.model_type = "olmo2",
           .architecture = "Olmo2ForCausalLM",
           .rms_norm_eps = 1e-5,
           .eos = {50279},
           .own_keys = {"attention_bias"}},
          spec};
}

}  // namespace snug::families
