// Writes config.json and generation_config.json of a GGUF file.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "format/gguf_architecture.h"
#include "format/gguf_import.h"
#include "format/hf_config.h"
#include "format/json.h"

namespace snug {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kArchitecture = "general.architecture";

const GgufArchitecture& architecture_of(const GgufHeader& header) {
  const GgufArchitecture* found = find_gguf_architecture(header.string(kArchitecture));
  if (!found) header.fail(kArchitecture, "one of " + gguf_architecture_names());
  return *found;
}

constexpr std::string_view kRopeDimension = "rope.dimension_count";

// Lists keys of an architecture, behind its name and a dot, that decide what is written, or nothing of the model.
constexpr std::array<std::string_view, 26> kKnownKeys{"context_length",
                                                      "embedding_length",
                                                      "feed_forward_length",
                                                      "block_count",
                                                      "vocab_size",
                                                      "attention.head_count",
                                                      "attention.head_count_kv",
                                                      "attention.key_length",
                                                      "attention.value_length",
                                                      "attention.layer_norm_rms_epsilon",
                                                      "attention.sliding_window",
                                                      "attention.causal",
                                                      "expert_count",
                                                      "expert_used_count",
                                                      "rope.dimension_count",
                                                      "rope.freq_base",
                                                      "rope.scaling.type",
                                                      "rope.scaling.factor",
                                                      "rope.scaling.attn_factor",
                                                      "rope.scaling.original_context_length",
                                                      "rope.scaling.finetuned",
                                                      "rope.scaling.yarn_ext_factor",
                                                      "rope.scaling.yarn_attn_factor",
                                                      "rope.scaling.yarn_beta_fast",
                                                      "rope.scaling.yarn_beta_slow",
                                                      "rope.scale_linear"};

// Those of one architecture.
constexpr std::array<std::pair<std::string_view, std::string_view>, 22> kOwnKeys{{
    {"gemma2", "attn_logit_softcapping"},
    {"gemma2", "final_logit_softcapping"},
    {"granite", "attention.scale"},
    {"granite", "embedding_scale"},
    {"granite", "residual_scale"},
    {"granite", "logit_scale"},
    {"gemma3", "attention.sliding_window_pattern"},
    {"gemma3", "rope.freq_base_swa"},
    {"gemma3", "final_logit_softcapping"},
    {"olmo2", "attention.sliding_window_pattern"},
    {"exaone4", "attention.sliding_window_pattern"},
    {"cohere2", "attention.sliding_window_pattern"},
    {"cohere2", "attention.layer_norm_epsilon"},
    {"cohere2", "logit_scale"},
    {"command-r", "attention.layer_norm_epsilon"},
    {"command-r", "logit_scale"},
    {"stablelm", "attention.layer_norm_epsilon"},
    {"stablelm", "use_parallel_residual"},  // tensors say it
    {"nemotron", "attention.layer_norm_epsilon"},
    {"starcoder2", "attention.layer_norm_epsilon"},
    {"mistral3", "attention.temperature_scale"},
    {"mistral3", "rope.scaling.yarn_log_multiplier"},
}};

// Refuses what changes the mathematics of a dense decoder.
void refuse_unsupported(const GgufHeader& header, const GgufArchitecture& kind) {
  const auto key = [&](std::string_view suffix) { return fmt::format("{}.{}", kind.name, suffix); };
  if (header.integer(key("expert_count"), 0, INT64_MAX, 0) != 0) header.fail(key("expert_count"), "0 or nothing");
  if (!header.boolean(key("attention.causal"), true)) header.fail(key("attention.causal"), "true or nothing");
  const std::string window = key("attention.sliding_window");
  if (!kind.passes_over_windows && kind.full_interval == 0 && header.integer(window, 0, INT64_MAX, 0) != 0)
    header.fail(window, "0 or nothing");
  const std::string factor = key("rope.scaling.attn_factor");
  if (header.number(factor, 1.0) == 1) return;
  if (!kind.has_long_rope) header.fail(factor, "1 or nothing");
  if (!header.find(kGgufLongRopeFactors))
    header.fail(factor, fmt::format("1 or nothing without tensor '{}'", kGgufLongRopeFactors));
}

// Returns the rotary frequencies' scaling as in config.json; null for none, and for the one that tensors say.
OrderedJson rope_scaling(const GgufHeader& header, const GgufArchitecture& kind) {
  const auto key = [&](std::string_view suffix) { return fmt::format("{}.rope.{}", kind.name, suffix); };
  // A factor without a type is a linear one.
  const std::string type_key = key("scaling.type"), type = header.string(type_key, "linear");
  if (type == "none") return {};
  const bool long_rope = type == "longrope" && kind.has_long_rope;
  if (type != "linear" && type != "yarn" && !long_rope)
    header.fail(type_key,
                fmt::format("\"none\", \"linear\"{} or \"yarn\"", kind.has_long_rope ? ", \"longrope\"" : ""));
  if (long_rope && !header.find(kGgufLongRopeFactors))
    header.fail(type_key, fmt::format("tensor '{}' beside it", kGgufLongRopeFactors));
  const std::string factor_key = key(header.has(key("scaling.factor")) ? "scaling.factor" : "scale_linear");
  const double factor = header.number(factor_key, 1.0);
  if (type != "yarn" && (factor == 0 || factor == 1)) return {};
  if (long_rope) header.fail(factor_key, "1 or nothing beside \"longrope\"");
  if (factor < 1) header.fail(factor_key, "a factor of at least 1");
  OrderedJson scaling{{"rope_type", type}, {"factor", factor}};
  if (type == "linear") return scaling;
  for (const char* name : {"scaling.yarn_ext_factor", "scaling.yarn_attn_factor"})
    if (header.number(key(name), 1.0) != 1) header.fail(key(name), "1 or nothing");
  scaling["original_max_position_embeddings"] = header.integer(key("scaling.original_context_length"), 1, kMaxPosition);
  for (const char* beta : {"beta_fast", "beta_slow"}) {
    const std::string name = key(fmt::format("scaling.yarn_{}", beta));
    if (header.has(name)) scaling[beta] = header.number(name);
  }
  if (const double weight = kind.name == "mistral3" ? header.number(key("scaling.yarn_log_multiplier"), 0.0) : 0;
      weight != 0) {
    scaling["mscale"] = 1.0;  // as llama.cpp takes it
    scaling["mscale_all_dim"] = weight;
  }
  return scaling;
}

// Returns the number of key heads: one for all layers, or one for each, which must be alike.
int64_t find_kv_heads(const GgufHeader& header, const GgufArchitecture& kind, int64_t layers, int64_t heads) {
  const std::string key = fmt::format("{}.attention.head_count_kv", kind.name);
  if (!header.has_integers(key)) return header.integer(key, 1, kMaxPosition, heads);
  const std::vector<int64_t>& counts = header.integers(key);
  if (std::ssize(counts) != layers || counts[0] < 1 || counts[0] > kMaxPosition ||
      std::ranges::count(counts, counts[0]) != layers)
    header.fail(key, fmt::format("one number, or the same one for each of {} layers", layers));
  return counts[0];
}

int64_t find_head_dim(const GgufHeader& header, const GgufArchitecture& kind, int64_t hidden, int64_t heads) {
  const std::string key_length = fmt::format("{}.attention.key_length", kind.name);
  const int64_t head_dim = header.integer(key_length, 1, 1 << 20, std::max<int64_t>(1, hidden / heads));
  for (const std::string_view suffix : {std::string_view("attention.value_length"), kRopeDimension}) {
    const std::string key = fmt::format("{}.{}", kind.name, suffix);
    if (kind.partial_rope && suffix == kRopeDimension) continue;
    if (header.integer(key, 1, 1 << 20, head_dim) != head_dim) {
      header.fail(key, fmt::format("{}, the size of a head", head_dim));
    }
  }
  return head_dim;
}

// Returns the number of rows of the embedding.
int64_t find_vocabulary(const GgufHeader& header) {
  const GgufTensor* embedding = header.find("token_embd.weight");
  if (!embedding) user_error("{}: tensor 'token_embd.weight' is missing, expected a matrix", header.source());
  if (embedding->shape.size() != 2) {
    user_error("{}, tensor 'token_embd.weight': found [{}], expected a matrix", header.source(),
               fmt::join(embedding->shape, ", "));
  }
  return embedding->shape[0];
}

// Granite's factors. One that is not there is 1, that of scores 1 / sqrt(head_dim).
void add_factors(OrderedJson& config, const GgufHeader& header) {
  const double usual = 1 / std::sqrt(config["head_dim"].get<double>());
  config["attention_multiplier"] = header.number("granite.attention.scale", usual);
  config["embedding_multiplier"] = header.number("granite.embedding_scale", 1.0);
  config["residual_multiplier"] = header.number("granite.residual_scale", 1.0);
  config["logits_scaling"] = header.number("granite.logit_scale", 1.0);
  config["attention_bias"] = config["mlp_bias"] = false;
}

// The window, and which layers have it. A file may say which they are, by their interval or one by one; llama.cpp knows
// one pattern of each architecture.
void add_window_keys(OrderedJson& config, const GgufHeader& header, const GgufArchitecture& kind) {
  const auto key = [&](std::string_view suffix) { return fmt::format("{}.attention.{}", kind.name, suffix); };
  config["sliding_window"] = header.integer(key("sliding_window"), 1, kMaxPosition);
  std::vector<int64_t> windows;
  config["layer_types"] = OrderedJson::array();
  for (int64_t layer = 0; layer < config["num_hidden_layers"]; ++layer) {
    windows.push_back(gguf_layer_has_window(kind, layer) ? 1 : 0);
    config["layer_types"].push_back(windows.back() ? "sliding_attention" : "full_attention");
  }
  const std::string pattern = key("sliding_window_pattern");
  if (!header.has_integers(pattern))
    header.integer(pattern, kind.full_interval, kind.full_interval, kind.full_interval);
  else if (header.integers(pattern) != windows)
    header.fail(pattern, fmt::format("true for all layers but each {}th", kind.full_interval));
}

// OLMo 2 with a window is OLMo 3, whose layers with one have a plain rotary embedding of the base of the others.
void become_olmo3(OrderedJson& config, const GgufHeader& header, const GgufArchitecture& kind) {
  config["architectures"] = {"Olmo3ForCausalLM"};
  config["model_type"] = "olmo3";
  add_window_keys(config, header, kind);
  OrderedJson full = config.contains("rope_scaling") ? config["rope_scaling"] : OrderedJson{{"rope_type", "default"}};
  full["rope_theta"] = config["rope_theta"];
  config["rope_parameters"] = {{"full_attention", full},
                               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", config["rope_theta"]}}}};
  config.erase("rope_theta");
  config.erase("rope_scaling");
}

void add_gemma_keys(OrderedJson& config, const GgufHeader& header, const GgufArchitecture& kind) {
  config["attention_bias"] = false;
  config["hidden_activation"] = kind.activation;
  if (kind.full_interval == 0) return;
  const auto key = [&](std::string_view suffix) { return fmt::format("{}.{}", kind.name, suffix); };
  const auto cap = [&](const char* suffix, double usual) {
    const double found = header.number(key(suffix), usual);
    return found == 0 ? OrderedJson() : OrderedJson(found);
  };
  const bool third = kind.name == "gemma3";
  const int64_t layers = config["num_hidden_layers"];
  add_window_keys(config, header, kind);
  config["query_pre_attn_scalar"] =
      gguf_score_divisor(kind, layers, config["hidden_size"], config["num_attention_heads"], config["head_dim"]);
  config["attn_logit_softcapping"] = third ? OrderedJson() : cap("attn_logit_softcapping", 50);
  config["final_logit_softcapping"] = cap("final_logit_softcapping", third ? 0 : 30);
  if (!third) return;
  config["rope_local_base_freq"] = header.number(key("rope.freq_base_swa"), kGgufLocalTheta);
}

// Ministral 3 has its rotary embedding's keys in one place, with what queries grow by; a file without that is of
// Mistral Small 3.1's text model.
void add_mistral3_keys(OrderedJson& config, const GgufHeader& header) {
  const std::string growth = "mistral3.attention.temperature_scale";
  if (header.number(growth, 0.0) == 0) {
    config["architectures"] = {"MistralForCausalLM"};
    config["model_type"] = "mistral";
    config["sliding_window"] = nullptr;
    return;
  }
  if (!config.contains("rope_scaling") || config["rope_scaling"]["rope_type"] != "yarn")
    header.fail("mistral3.rope.scaling.type", fmt::format("\"yarn\" beside '{}'", growth));
  OrderedJson rope = config["rope_scaling"];
  rope["rope_theta"] = config["rope_theta"];
  rope["llama_4_scaling_beta"] = header.number(growth);
  config["rope_parameters"] = std::move(rope);
  config.erase("rope_theta");
  config.erase("rope_scaling");
}

// The keys of one family.
void add_own_keys(OrderedJson& config, const GgufHeader& header, const GgufArchitecture& kind) {
  const auto has_bias = [&](std::string_view linear) {
    return header.find(fmt::format("blk.0.{}.bias", linear)) != nullptr;
  };
  const std::string window = fmt::format("{}.attention.sliding_window", kind.name);
  if (kind.name == "llama" && header.integer(window, 0, kMaxPosition, 0) != 0) {
    config["architectures"] = {"MistralForCausalLM"};
    config["model_type"] = "mistral";
    config["sliding_window"] = header.integer(window, 1, kMaxPosition);
    return;
  }
  if (kind.may_have_biases) {
    config["attention_bias"] = has_bias("attn_q") || has_bias("attn_output");
    config["mlp_bias"] = has_bias("ffn_gate") || has_bias("ffn_down");
  }
  const bool head_gains = header.find("blk.0.attn_q_norm.weight") != nullptr;
  if (kind.may_have_head_gains) config[kind.name == "stablelm" ? "qk_layernorm" : "use_qk_norm"] = head_gains;
  if (kind.may_be_parallel) config["use_parallel_residual"] = header.find("blk.0.ffn_norm.weight") == nullptr;
  if (kind.name == "mistral3") return add_mistral3_keys(config, header);
  if (kind.name == "arcee") config["attention_bias"] = config["mlp_bias"] = false;
  if (kind.name == "seed_oss") config["attention_out_bias"] = config["mlp_bias"] = false;
  if (kind.name == "ernie4_5") config["use_bias"] = false;
  if (kind.has_biases) config["use_bias"] = true;
  if (kind.passes_over_windows && kind.name != "llama") {
    const int64_t seen = header.integer(window, 0, kMaxPosition, 0);
    config["sliding_window"] = seen > 0 ? OrderedJson(seen) : OrderedJson();
  }
  if (kind.name == "qwen2" || kind.name == "qwen3") config["use_sliding_window"] = false;
  if (kind.name == "qwen3" || kind.name == "olmo2" || kind.name == "hunyuan-dense") config["attention_bias"] = false;
  if (kind.may_have_qkv_biases)
    config[kind.name == "stablelm" ? "use_qkv_bias" : "attention_bias"] = has_bias("attn_q");
  if (kind.partial_rope) {
    const int64_t head_dim = config["head_dim"];
    const int64_t turned = header.integer(fmt::format("{}.{}", kind.name, kRopeDimension), 2, head_dim, head_dim);
    config["partial_rotary_factor"] = static_cast<double>(turned) / static_cast<double>(head_dim);
  }
  if (kind.layer_norm && !kind.norm_bias) {
    config["logit_scale"] = header.number(fmt::format("{}.logit_scale", kind.name));
    config["attention_bias"] = false;
  }
  const bool windows = header.integer(window, 0, kMaxPosition, 0) != 0;
  if (kind.name == "olmo2" && windows) become_olmo3(config, header, kind);
  if (kind.rope_in_windows && (windows || !kind.may_lack_windows)) add_window_keys(config, header, kind);
  if (kind.name == "exaone4" && !windows) config["sliding_window"] = nullptr;
  if (kind.name == "granite") add_factors(config, header);
  if (kind.gemma) add_gemma_keys(config, header, kind);
  if (kind.name != "smollm3") return;
  config["attention_bias"] = config["mlp_bias"] = config["use_sliding_window"] = false;
  config["no_rope_layer_interval"] = kGgufNoRopeInterval;
  OrderedJson with_rope = OrderedJson::array();
  for (int64_t layer = 0; layer < config["num_hidden_layers"]; ++layer)
    with_rope.push_back(gguf_layer_has_rope(kind, layer, false) ? 1 : 0);
  config["no_rope_layers"] = std::move(with_rope);
}

std::string text_of(const OrderedJson& json) { return json.dump(2) + "\n"; }

}  // namespace

std::string gguf_model_config(const GgufHeader& header) {
  const GgufArchitecture& kind = architecture_of(header);
  refuse_unsupported(header, kind);
  const auto size = [&](const char* key, int64_t most, std::optional<int64_t> fallback = {}) {
    return header.integer(fmt::format("{}.{}", kind.name, key), 1, most, fallback);
  };
  const int64_t vocabulary = find_vocabulary(header);
  const int64_t hidden = size("embedding_length", kMaxPosition), heads = size("attention.head_count", kMaxPosition);
  OrderedJson config;
  config["architectures"] = {kind.class_name};
  config["model_type"] = kind.model_type;
  config["hidden_size"] = hidden;
  config["intermediate_size"] = size("feed_forward_length", kMaxPosition);
  config["num_hidden_layers"] = size("block_count", kMaxLayers);
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = find_kv_heads(header, kind, config["num_hidden_layers"], heads);
  config["head_dim"] = find_head_dim(header, kind, hidden, heads);
  config["vocab_size"] = vocabulary;
  config["max_position_embeddings"] = size("context_length", kMaxPosition);
  config[kind.epsilon_key] = header.number(
      fmt::format("{}.attention.{}", kind.name, kind.layer_norm ? "layer_norm_epsilon" : "layer_norm_rms_epsilon"));
  config["rope_theta"] = header.number(fmt::format("{}.rope.freq_base", kind.name), 10000.0);
  if (const OrderedJson scaling = rope_scaling(header, kind); !scaling.is_null()) config["rope_scaling"] = scaling;
  config["hidden_act"] = kind.activation;
  add_own_keys(config, header, kind);
  config["attention_dropout"] = 0.0;
  config["tie_word_embeddings"] = header.find("output.weight") == nullptr;
  config["torch_dtype"] = "bfloat16";
  for (const auto& [key, role] :
       {std::pair("bos_token_id", "bos"), {"eos_token_id", "eos"}, {"pad_token_id", "padding"}}) {
    const auto id = gguf_token_id(header, role, vocabulary);
    config[key] = id ? OrderedJson(*id) : OrderedJson();
  }
  return text_of(config);
}

std::string gguf_generation_config(const GgufHeader& header) {
  const int64_t vocabulary = find_vocabulary(header);
  OrderedJson config, ends = OrderedJson::array();
  config["_from_model_config"] = true;
  for (const auto& [key, role] : {std::pair("bos_token_id", "bos"), {"pad_token_id", "padding"}})
    if (const auto id = gguf_token_id(header, role, vocabulary)) config[key] = *id;
  for (const char* role : {"eos", "eot"})  // eot ends a turn
    if (const auto id = gguf_token_id(header, role, vocabulary)) ends.push_back(*id);
  if (ends.size() == 2 && ends[0] == ends[1]) ends.erase(1);
  if (!ends.empty()) config["eos_token_id"] = ends.size() == 1 ? ends[0] : ends;
  return text_of(config);
}

std::vector<std::string> gguf_unused_keys(const GgufHeader& header) {
  const std::string architecture = header.string(kArchitecture), prefix = architecture + ".";
  std::vector<std::string> unused;
  for (const std::string_view key : header.keys()) {
    if (!key.starts_with(prefix)) continue;
    const std::string_view name = key.substr(prefix.size());
    if (std::ranges::count(kKnownKeys, name) == 0 &&
        std::ranges::count(kOwnKeys, std::pair(std::string_view(architecture), name)) == 0)
      unused.emplace_back(key);
  }
  return unused;
}

}  // namespace snug
