#include "model/families.h"

#include <algorithm>
#include <cmath>

namespace snug {
namespace {

Activation activation_of(std::string_view hidden_act) {
  if (hidden_act == "gelu_pytorch_tanh") return Activation::GeluTanh;
  if (hidden_act == "relu2") return Activation::ReluSquared;
  check(hidden_act == "silu", "a family's activation is '{}'", hidden_act);
  return Activation::Silu;
}

}  // namespace

ModelSpec llama_decoder(const HfConfig& config) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const int64_t queries = config.heads * config.head_dim, keys = config.kv_heads * config.head_dim;
  const LayerSpec layer{
      .attention_norm = {"input_layernorm.weight", config.rms_norm_eps},
      .mlp_norm = {"post_attention_layernorm.weight", config.rms_norm_eps},
      .heads = {config.heads, config.kv_heads, config.head_dim},
      .qkv = {{{"self_attn.q_proj", queries}, {"self_attn.k_proj", keys}, {"self_attn.v_proj", keys}}, hidden},
      .o = {{{"self_attn.o_proj", hidden}}, queries},
      .gate_up = {{{"mlp.gate_proj", ffn}, {"mlp.up_proj", ffn}}, hidden},
      .down = {{{"mlp.down_proj", hidden}}, ffn},
      .gate = activation_of(config.activation)};
  return {.architecture = config.architecture,
          .hidden = hidden,
          .vocabulary = config.vocabulary,
          .embedding = "model.embed_tokens.weight",
          .head = "lm_head.weight",
          .tied = config.tie_word_embeddings,
          .layer_prefix = "model.layers.",
          .layers = std::vector(static_cast<size_t>(config.layers), layer),
          .final_norm = {"model.norm.weight", config.rms_norm_eps},
          .rope = config.rope,
          .positions = config.max_position};
}

void require_whole_heads(const HfConfig& config, const JsonObject& json) {
  if (config.heads * config.head_dim != config.hidden_size)
    json.fail("head_dim",
              fmt::format("{}, as hidden_size and num_attention_heads say", config.hidden_size / config.heads));
}

void add_biases(ModelSpec& model, const JsonObject& json) {
  const bool attention = json.boolean("attention_bias", false), mlp = json.boolean("mlp_bias", false);
  for (LayerSpec& layer : model.layers) {
    layer.qkv.bias = layer.o.bias = attention;
    layer.gate_up.bias = layer.down.bias = mlp;
  }
}

void add_head_norms(ModelSpec& model, const HfConfig& config) {
  for (LayerSpec& layer : model.layers) {
    layer.query_norm = {"self_attn.q_norm.weight", config.rms_norm_eps};
    layer.key_norm = {"self_attn.k_norm.weight", config.rms_norm_eps};
  }
}

void add_own_head_norms(ModelSpec& model, const HfConfig& config, const std::string& query, const std::string& key) {
  for (LayerSpec& layer : model.layers) {
    layer.query_norm = {query, config.rms_norm_eps, false, NormKind::Layer};
    layer.key_norm = {key, config.rms_norm_eps, false, NormKind::Layer};
    layer.own_head_gains = true;
  }
}

void leave_out_gates(ModelSpec& model) {
  for (LayerSpec& layer : model.layers) {
    layer.gated = false;
    layer.gate_up.parts = {{"mlp.up_proj", layer.down.in}};
  }
}

void become_layer_normed(ModelSpec& model, bool plus_one, bool bias) {
  const auto change = [&](NormSpec& norm) {
    norm.kind = NormKind::Layer;
    norm.plus_one = plus_one;
    if (bias) norm.bias = norm.weight.substr(0, norm.weight.rfind('.')) + ".bias";
  };
  for (LayerSpec& layer : model.layers) {
    change(layer.attention_norm);
    change(layer.mlp_norm);
  }
  change(model.final_norm);
}

void move_norms_behind(ModelSpec& model) {
  for (LayerSpec& layer : model.layers) {
    layer.attention_post_norm = {"post_attention_layernorm.weight", layer.attention_norm.epsilon};
    layer.mlp_post_norm = {"post_feedforward_layernorm.weight", layer.mlp_norm.epsilon};
    layer.attention_norm = layer.mlp_norm = {};
  }
}

void become_olmo2(ModelSpec& model, const HfConfig& config, const JsonObject& json) {
  const bool bias = json.boolean("attention_bias", false);
  add_head_norms(model, config);
  for (LayerSpec& layer : model.layers) {
    layer.joint_head_norms = true;
    layer.qkv.bias = layer.o.bias = bias;
  }
  move_norms_behind(model);
}

void become_glm(ModelSpec& model, const JsonObject& json) {
  const bool bias = json.boolean("attention_bias", true);
  for (LayerSpec& layer : model.layers) {
    layer.qkv.bias = bias;
    layer.gate_up.parts = {{"mlp.gate_up_proj", 2 * layer.down.in}};
    layer.rope_interleaved = true;
  }
}

void become_parallel(ModelSpec& model) {
  for (LayerSpec& layer : model.layers) {
    layer.parallel = true;
    layer.mlp_norm = {};
  }
}

void become_cohere(ModelSpec& model, const JsonObject& json) {
  become_layer_normed(model, false, false);
  become_parallel(model);
  model.logits_factor = json.number("logit_scale", 1e-6, 1e6, 0.0625);
  const bool bias = json.boolean("attention_bias", false);
  for (LayerSpec& layer : model.layers) {
    layer.rope_interleaved = true;
    layer.qkv.bias = layer.o.bias = bias;
  }
}

void add_granite_factors(ModelSpec& model, const JsonObject& json) {
  constexpr double kMostFactor = 1e6;
  const auto factor = [&](std::string_view key) { return json.number(key, 1 / kMostFactor, kMostFactor, 1.0); };
  model.embedding_factor = factor("embedding_multiplier");
  model.logits_factor = 1 / factor("logits_scaling");
  for (LayerSpec& layer : model.layers) {
    layer.attention_scale = factor("attention_multiplier");
    layer.residual_multiplier = factor("residual_multiplier");
  }
}

HfFamily gemma_names(std::string_view model_type, std::string_view architecture, int64_t kv_heads,
                     std::vector<std::string_view> own_keys) {
  own_keys.push_back("attention_bias");
  return {.model_type = model_type,
          .architecture = architecture,
          .kv_heads = kv_heads,
          .head_dim = 256,
          .max_position = 8192,
          .tie_word_embeddings = true,
          .bos = 2,
          .eos = {1},
          .activation = "gelu_pytorch_tanh",
          .gelu_is_by_tanh = true,
          .own_keys = std::move(own_keys)};
}

void become_gemma(ModelSpec& model, const JsonObject& json) {
  model.embedding_factor = std::sqrt(static_cast<double>(model.hidden));
  model.final_norm.plus_one = true;
  for (LayerSpec& layer : model.layers) {
    layer.qkv.bias = layer.o.bias = json.boolean("attention_bias", false);
    for (NormSpec* norm : {&layer.attention_norm, &layer.mlp_norm, &layer.query_norm, &layer.key_norm,
                           &layer.attention_post_norm, &layer.mlp_post_norm})
      norm->plus_one = !norm->weight.empty();
  }
}

void become_gemma2(ModelSpec& model, const JsonObject& json) {
  const double scale = 1 / std::sqrt(json.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0));
  for (LayerSpec& layer : model.layers) {
    layer.attention_scale = scale;
    const double epsilon = layer.mlp_norm.epsilon;
    layer.attention_post_norm = {"post_attention_layernorm.weight", epsilon};
    layer.mlp_norm = {"pre_feedforward_layernorm.weight", epsilon};
    layer.mlp_post_norm = {"post_feedforward_layernorm.weight", epsilon};
  }
  become_gemma(model, json);
}

int64_t window_of(const JsonObject& json, int64_t fallback) {
  if (json.value().contains("sliding_window") && !json.has("sliding_window")) return 0;
  return json.integer("sliding_window", 1, kMaxPosition, fallback);
}

void add_window_everywhere(ModelSpec& model, const JsonObject& json, int64_t window) {
  for (LayerSpec& layer : model.layers) layer.window = window;
  if (!json.has("layer_types")) return;
  const std::vector<bool> sliding = sliding_layers(json, model.layers.size());
  if (std::ranges::find(sliding, window == 0) != sliding.end())
    json.fail("layer_types", fmt::format("\"{}\" for every layer, as sliding_window says",
                                         window == 0 ? "full_attention" : "sliding_attention"));
}

void add_chosen_windows(ModelSpec& model, const JsonObject& json) {
  if (!json.boolean("use_sliding_window", false)) return;
  const int64_t window = window_of(json);
  if (window == 0) return;
  std::vector<bool> sliding(model.layers.size());
  if (json.has("layer_types")) {
    sliding = sliding_layers(json, model.layers.size());
  } else {
    const auto full = static_cast<size_t>(json.integer("max_window_layers", 0, kMaxLayers, 28));
    for (size_t layer = full; layer < sliding.size(); layer++) sliding[layer] = true;
  }
  for (size_t layer = 0; layer < sliding.size(); layer++) model.layers[layer].window = sliding[layer] ? window : 0;
}

std::vector<bool> sliding_layers(const JsonObject& json, size_t layers) {
  const Json& types = json.at("layer_types");
  const auto known = [](const Json& type) { return type == "full_attention" || type == "sliding_attention"; };
  if (!types.is_array() || types.size() != layers || !std::ranges::all_of(types, known))
    json.fail("layer_types", fmt::format("\"full_attention\" or \"sliding_attention\" for each of {} layers", layers));
  std::vector<bool> sliding;
  for (const Json& type : types) sliding.push_back(type == "sliding_attention");
  return sliding;
}

std::vector<bool> windows_but_every(const JsonObject& json, size_t layers, int64_t every, std::string_view key) {
  if (json.has("layer_types")) return sliding_layers(json, layers);
  const auto pattern = static_cast<size_t>(json.integer(key, 1, kMaxLayers, every));
  std::vector<bool> sliding;
  for (size_t layer = 0; layer < layers; layer++) sliding.push_back((layer + 1) % pattern != 0);
  return sliding;
}

RopeParameters rope_of_windows(const HfConfig& config, const JsonObject& json, double theta) {
  if (!has_rope_by_layers(json)) return {.theta = theta};
  RopeParameters rope = parse_rope(json, {.theta = theta}, config.head_dim, config.max_position, "sliding_attention");
  rope.dim = config.rope.dim;
  return rope;
}

}  // namespace snug
