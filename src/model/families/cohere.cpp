// Cohere's Command-R: attention and MLP side by side behind one LayerNorm, neighbours turning, and scaled logits;
// Command-R+ (`use_qk_norm`) also norms each head of queries and keys, with a gain for each.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  become_cohere(model, json);
  if (json.boolean("use_qk_norm", false))
    add_own_head_norms(model, config, "self_attn.q_norm.weight", "self_attn.k_norm.weight");
  return model;
}

}  // namespace

Family cohere() {
  return {{.model_type = "cohere",
           .architecture = "CohereForCausalLM",
           .max_position = 8192,
           .rms_norm_eps = 1e-5,
           .rope_theta = 500000,
           .tie_word_embeddings = true,
           .bos = 5,
           .eos = {255001},
           .epsilon_key = "layer_norm_eps",
           .own_keys = {"attention_bias", "logit_scale", "use_qk_norm"}},
          spec};
}

}  // namespace snug::families
