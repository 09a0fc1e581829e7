// Granite 4's dense models without Mamba layers (micro, 1b, 350m): Granite under other names, with gate and up as one
// linear in the files. Layers with Mamba or with experts are refused by name.
#include <algorithm>

#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  constexpr std::string_view kTypes = "layer_types", kPositions = "position_embedding_type";
  ModelSpec model = llama_decoder(config);
  add_granite_factors(model, json);
  if (json.integer("num_local_experts", 0, kMaxLayers, 8) != 0) json.fail("num_local_experts", "0: a dense model");
  const auto is_attention = [](const Json& type) { return type == "attention" || type == "full_attention"; };
  const bool typed = json.has(kTypes) && json.at(kTypes).is_array() && json.at(kTypes).size() == model.layers.size();
  if (!typed || !std::ranges::all_of(json.at(kTypes), is_attention))
    json.fail(kTypes, fmt::format("\"attention\" for each of {} layers: those with Mamba are not supported",
                                  model.layers.size()));
  const std::string positions = json.string(kPositions, "nope");
  if (positions != "rope" && positions != "nope") json.fail(kPositions, "\"rope\" or \"nope\"");
  const int64_t ffn = json.integer("shared_intermediate_size", 1, kMaxWidth, 1024);
  const bool bias = json.boolean("attention_bias", false);
  for (LayerSpec& layer : model.layers) {
    layer.rope = positions == "rope";
    layer.qkv.bias = layer.o.bias = bias;
    layer.gate_up.parts = {{"shared_mlp.input_linear", 2 * ffn}};
    layer.down = {{{"shared_mlp.output_linear", model.hidden}}, ffn};
  }
  return model;
}

}  // namespace

Family granitemoehybrid() {
  return {{.model_type = "granitemoehybrid",
           .architecture = "GraniteMoeHybridForCausalLM",
           .bos = 1,
           .eos = {2},
           .own_keys = {"attention_bias", "embedding_multiplier", "residual_multiplier", "logits_scaling",
                        "num_local_experts"}},
          spec};
}

}  // namespace snug::families
