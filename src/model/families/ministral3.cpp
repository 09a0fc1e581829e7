// Ministral 3, its text models: Llama whose queries grow with their positions, with a rotary embedding scaled by Yarn.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const JsonObject rope = json.object("rope_parameters");
  model.rope.query_growth = rope.number("llama_4_scaling_beta", 0, 100);
  model.rope.original_max_position = rope.number("original_max_position_embeddings", 1, kMaxPosition);
  const int64_t window = json.has("sliding_window") ? json.integer("sliding_window", 1, kMaxPosition) : 0;
  for (LayerSpec& layer : model.layers) layer.window = window;
  return model;
}

}  // namespace

Family ministral3() {
  return {
      {.model_type = "ministral3",
       .architecture = "Ministral3ForCausalLM",
       .kv_heads = 8,
       .head_dim = 128,
       .max_position = 262144,
       .rms_norm_eps = 1e-5,
       .bos = 1,
       .eos = {2},
       .rope = R"({"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                       "original_max_position_embeddings": 16384, "mscale_all_dim": 1.0, "mscale": 1.0,
                       "llama_4_scaling_beta": 0.1})"},
      spec};
}

}  // namespace snug::families
