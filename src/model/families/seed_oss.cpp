// Seed-OSS: Llama with biases on q, k and v, and on o where `attention_out_bias` is.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const bool qkv = json.boolean("attention_bias", true), o = json.boolean("attention_out_bias", false),
             mlp = json.boolean("mlp_bias", false);
  for (LayerSpec& layer : model.layers) {
    layer.qkv.bias = qkv;
    layer.o.bias = o;
    layer.gate_up.bias = layer.down.bias = mlp;
  }
  return model;
}

}  // namespace

Family seed_oss() {
  return {{.model_type = "seed_oss",
           .architecture = "SeedOssForCausalLM",
           .kv_heads = 8,
           .head_dim = 128,
           .max_position = 524288,
           .dropout = 0.1,
           .bos = 0,
           .eos = {2},
           .own_keys = {"attention_bias", "attention_out_bias", "mlp_bias"}},
          spec};
}

}  // namespace snug::families
