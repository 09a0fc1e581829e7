// StarCoder2 (3B, 7B, 15B): Llama with LayerNorms, an MLP without a gate through GELU by tanh, biases on every linear
// unless `use_bias` is false, and a window on every layer where `sliding_window` is one.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  leave_out_gates(model);
  become_layer_normed(model, false);
  const bool bias = json.boolean("use_bias", true);
  for (LayerSpec& layer : model.layers) {
    layer.gate_up.parts[0].module = "mlp.c_fc";
    layer.down.parts[0].module = "mlp.c_proj";
    layer.qkv.bias = layer.o.bias = layer.gate_up.bias = layer.down.bias = bias;
  }
  add_window_everywhere(model, json, json.has("sliding_window") ? window_of(json) : 0);
  return model;
}

}  // namespace

Family starcoder2() {
  return {{.model_type = "starcoder2",
           .architecture = "Starcoder2ForCausalLM",
           .kv_heads = 2,
           .max_position = 4096,
           .rms_norm_eps = 1e-5,
           .tie_word_embeddings = true,
           .bos = 50256,
           .eos = {50256},
           .activation = "gelu_pytorch_tanh",
           .epsilon_key = "norm_epsilon",
           .own_keys = {"use_bias"}},
          spec};
}

}  // namespace snug::families
