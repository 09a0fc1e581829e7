// Helium 1: Llama with a rotary embedding that turns neighbours, and no bias on o where `attention_bias` puts them on
// q, k and v.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  require_whole_heads(config, json);
  ModelSpec model = llama_decoder(config);
  add_biases(model, json);
  for (LayerSpec& layer : model.layers) {
    layer.o.bias = false;
    layer.rope_interleaved = true;
  }
  return model;
}

}  // namespace

Family helium() {
  return {{.model_type = "helium",
           .architecture = "HeliumForCausalLM",
           .kv_heads = 20,
           .head_dim = 128,
           .max_position = 4096,
           .rms_norm_eps = 1e-8,
           .rope_theta = 100000,
           .bos = 1,
           .eos = {2},
           .own_keys = {"attention_bias", "mlp_bias"}},
          spec};
}

}  // namespace snug::families
