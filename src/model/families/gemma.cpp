// Gemma 1 and 1.1 (also CodeGemma): Llama with gains of 1 + weight, GeGLU and scaled embeddings.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  for (LayerSpec& layer : model.layers) layer.qkv.bias = layer.o.bias = json.boolean("attention_bias", false);
  become_gemma(model);
  return model;
}

}  // namespace

Family gemma() {
  return {{.model_type = "gemma",
           .architecture = "GemmaForCausalLM",
           .kv_heads = 16,
           .head_dim = 256,
           .max_position = 8192,
           .tie_word_embeddings = true,
           .bos = 2,
           .eos = 1,
           .gelu = true,
           .own_keys = {"attention_bias"}},
          spec};
}

}  // namespace snug::families
