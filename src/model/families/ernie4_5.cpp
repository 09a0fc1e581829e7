// ERNIE 4.5, dense: Llama with a rotary embedding that turns neighbours, and biases on every linear where `use_bias`
// is.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const bool bias = json.boolean("use_bias", false);
  for (LayerSpec& layer : model.layers) {
    layer.qkv.bias = layer.o.bias = layer.gate_up.bias = layer.down.bias = bias;
    layer.rope_interleaved = true;
  }
  return model;
}

}  // namespace

Family ernie4_5() {
  return {{.model_type = "ernie4_5",
           .architecture = "Ernie4_5ForCausalLM",
           .kv_heads = 2,
           .head_dim = 128,
           .max_position = 131072,
           .rms_norm_eps = 1e-5,
           .rope_theta = 500000,
           .tie_word_embeddings = true,
           .bos = 1,
           .eos = {2},
           .own_keys = {"use_bias"}},
          spec};
}

}  // namespace snug::families
