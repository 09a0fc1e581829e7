// Phi-3, Phi-3.5 and Phi-4: Llama whose files have q, k and v as one linear, and gate and up as another. Adapters are
// of these, as PEFT makes them: one A for all of a linear's rows.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const int64_t window = json.has("sliding_window") ? json.integer("sliding_window", 1, kMaxPosition) : 0;
  for (LayerSpec& layer : model.layers) {
    layer.qkv.parts = {{"self_attn.qkv_proj", layer.heads.query_columns() + 2 * layer.heads.key_columns()}};
    layer.gate_up.parts = {{"mlp.gate_up_proj", 2 * layer.down.in}};
    layer.window = window;
  }
  return model;
}

}  // namespace

Family phi3() {
  return {{.model_type = "phi3",
           .architecture = "Phi3ForCausalLM",
           .max_position = 4096,
           .rms_norm_eps = 1e-5,
           .original_max_position = 4096,
           .bos = 1,
           .eos = {32000},
           .own_keys = {"partial_rotary_factor"}},
          spec};
}

}  // namespace snug::families
