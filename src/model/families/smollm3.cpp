// SmolLM3: Llama without rotary embedding on every fourth layer, and with a window on those layers if it is asked for.
#include "model/families.h"

namespace snug::families {
namespace {

// Returns for each layer whether it has rotary embedding: `no_rope_layers` says 1 where it has, 0 where it has none.
// Without that key every `no_rope_layer_interval`-th layer has none.
std::vector<bool> layers_with_rope(const JsonObject& json, size_t layers) {
  constexpr std::string_view kKey = "no_rope_layers";
  std::vector<bool> with_rope;
  if (!json.has(kKey)) {
    const auto interval = static_cast<size_t>(json.integer("no_rope_layer_interval", 1, kMaxLayers, 4));
    for (size_t layer = 0; layer < layers; layer++) with_rope.push_back((layer + 1) % interval != 0);
    return with_rope;
  }
  const Json& list = json.at(kKey);
  if (!list.is_array() || list.size() < layers)
    json.fail(kKey, fmt::format("0 or 1 (with rotary embedding) for each of {} layers", layers));
  for (size_t layer = 0; layer < layers; layer++) {
    if (list[layer] != 0 && list[layer] != 1) json.fail(kKey, "0 or 1 (with rotary embedding) for each layer");
    with_rope.push_back(list[layer] == 1);
  }
  return with_rope;
}

// `layer_types` names the layers that have the window; without that key those without rotary embedding have it. There
// is none unless use_sliding_window is true and sliding_window a number.
void add_windows(ModelSpec& model, const JsonObject& json) {
  const bool used = json.boolean("use_sliding_window", false) && json.has("sliding_window");
  const int64_t window = used ? json.integer("sliding_window", 1, kMaxPosition) : 0;
  std::vector<bool> sliding;
  if (json.has("layer_types"))
    sliding = sliding_layers(json, model.layers.size());
  else
    for (const LayerSpec& layer : model.layers) sliding.push_back(used && !layer.rope);
  for (size_t layer = 0; layer < sliding.size(); layer++) {
    if (!sliding[layer]) continue;
    // Without both keys transformers' eager attention has the window and its flash attention does not.
    if (!used) json.fail("layer_types", "\"full_attention\" for every layer, or use_sliding_window and sliding_window");
    model.layers[layer].window = window;
  }
}

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  const std::vector<bool> with_rope = layers_with_rope(json, model.layers.size());
  for (size_t layer = 0; layer < with_rope.size(); layer++) model.layers[layer].rope = with_rope[layer];
  add_biases(model, json);
  add_windows(model, json);
  return model;
}

}  // namespace

Family smollm3() {
  return {{.model_type = "smollm3",
           .architecture = "SmolLM3ForCausalLM",
           .kv_heads = 4,
           .max_position = 32768,
           .rope_theta = 2e6,
           .tie_word_embeddings = true,
           .bos = 128000,
           .eos = {128001},
           .own_keys = {"attention_bias", "mlp_bias"}},
          spec};
}

}  // namespace snug::families
