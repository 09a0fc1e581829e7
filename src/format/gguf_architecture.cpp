#include "format/gguf_architecture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace snug {
namespace {

constexpr std::array<GgufArchitecture, 23> kArchitectures{{
    {.name = "llama",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .interleaves_heads = true,
     .may_have_biases = true,
     .has_rope_factors = true,
     .passes_over_windows = true},
    {.name = "mistral3", .model_type = "ministral3", .class_name = "Ministral3ForCausalLM", .interleaves_heads = true},
    {.name = "qwen2", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM", .qkv_bias = true},
    {.name = "qwen3",
     .model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .norms = {.query = "self_attn.q_norm", .key = "self_attn.k_norm"}},
    {.name = "smollm3", .model_type = "smollm3", .class_name = "SmolLM3ForCausalLM", .interleaves_heads = true},
    {.name = "granite", .model_type = "granite", .class_name = "GraniteForCausalLM", .interleaves_heads = true},
    {.name = "gemma",
     .model_type = "gemma",
     .class_name = "GemmaForCausalLM",
     .activation = "gelu_pytorch_tanh",
     .gemma = true},
    {.name = "gemma2",
     .model_type = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .activation = "gelu_pytorch_tanh",
     .gemma = true,
     .norms = {.attention_post = "post_attention_layernorm",
               .mlp = "pre_feedforward_layernorm",
               .mlp_post = "post_feedforward_layernorm"},
     .full_interval = 2},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .class_name = "Gemma3ForCausalLM",
     .activation = "gelu_pytorch_tanh",
     .gemma = true,
     .norms = {.attention_post = "post_attention_layernorm",
               .mlp = "pre_feedforward_layernorm",
               .mlp_post = "post_feedforward_layernorm",
               .query = "self_attn.q_norm",
               .key = "self_attn.k_norm"},
     .full_interval = 6},
    {.name = "olmo2",
     .model_type = "olmo2",
     .class_name = "Olmo2ForCausalLM",
     .norms = {.attention = "",
               .attention_post = "post_attention_layernorm",
               .mlp = "",
               .mlp_post = "post_feedforward_layernorm",
               .query = "self_attn.q_norm",
               .key = "self_attn.k_norm"},
     .joint_head_norms = true,
     .full_interval = 4,
     .may_lack_windows = true},
    {.name = "exaone4",
     .model_type = "exaone4",
     .class_name = "Exaone4ForCausalLM",
     .has_rope_factors = true,
     .norms = {.attention = "",
               .attention_post = "post_attention_layernorm",
               .mlp = "",
               .mlp_post = "post_feedforward_layernorm",
               .query = "self_attn.q_norm",
               .key = "self_attn.k_norm"},
     .full_interval = 4,
     .may_lack_windows = true,
     .rope_in_windows = true},
    {.name = "glm4",
     .model_type = "glm4",
     .class_name = "Glm4ForCausalLM",
     .norms = {.attention_post = "post_self_attn_layernorm", .mlp_post = "post_mlp_layernorm"},
     .neighbours = true,
     .fused_gate_up = true,
     .partial_rope = true,
     .may_have_qkv_biases = true},
    {.name = "hunyuan-dense",
     .model_type = "hunyuan_v1_dense",
     .class_name = "HunYuanDenseV1ForCausalLM",
     .norms = {.query = "self_attn.query_layernorm", .key = "self_attn.key_layernorm"}},
    {.name = "command-r",
     .model_type = "cohere",
     .class_name = "CohereForCausalLM",
     .epsilon_key = "layer_norm_eps",
     .norms = {.mlp = "", .query = "self_attn.q_norm", .key = "self_attn.k_norm"},
     .layer_norm = true,
     .neighbours = true,
     .may_have_head_gains = true},
    {.name = "cohere2",
     .model_type = "cohere2",
     .class_name = "Cohere2ForCausalLM",
     .epsilon_key = "layer_norm_eps",
     .norms = {.mlp = ""},
     .layer_norm = true,
     .neighbours = true,
     .full_interval = 4,
     .rope_in_windows = true},
    {.name = "phi3",
     .model_type = "phi3",
     .class_name = "Phi3ForCausalLM",
     .has_long_rope = true,
     .fused_gate_up = true,
     .fused_qkv = true,
     .whole_heads = true,
     .partial_rope = true,
     .passes_over_windows = true},
    {.name = "chatglm",
     .model_type = "glm",
     .class_name = "GlmForCausalLM",
     .neighbours = true,
     .fused_gate_up = true,
     .whole_heads = true,
     .partial_rope = true,
     .may_have_qkv_biases = true},
    {.name = "arcee",
     .model_type = "arcee",
     .class_name = "ArceeForCausalLM",
     .activation = "relu2",
     .interleaves_heads = true,
     .has_rope_factors = true,
     .gated = false},
    {.name = "stablelm",
     .model_type = "stablelm",
     .class_name = "StableLmForCausalLM",
     .epsilon_key = "layer_norm_eps",
     .norms = {.query = "self_attn.q_layernorm.norms.{}", .key = "self_attn.k_layernorm.norms.{}"},
     .layer_norm = true,
     .norm_bias = true,
     .needs_own_head = true,
     .whole_heads = true,
     .partial_rope = true,
     .may_have_qkv_biases = true,
     .may_have_head_gains = true,
     .may_be_parallel = true},
    {.name = "nemotron",
     .model_type = "nemotron",
     .class_name = "NemotronForCausalLM",
     .activation = "relu2",
     .epsilon_key = "norm_eps",
     .may_have_biases = true,
     .layer_norm = true,
     .gated = false,
     .norm_bias = true,
     .plus_one = true,
     .needs_own_head = true,
     .whole_heads = true,
     .partial_rope = true},
    {.name = "starcoder2",
     .model_type = "starcoder2",
     .class_name = "Starcoder2ForCausalLM",
     .activation = "gelu_pytorch_tanh",
     .epsilon_key = "norm_epsilon",
     .up = "mlp.c_fc",
     .down = "mlp.c_proj",
     .has_biases = true,
     .layer_norm = true,
     .gated = false,
     .norm_bias = true,
     .whole_heads = true,
     .passes_over_windows = true},
    {.name = "ernie4_5", .model_type = "ernie4_5", .class_name = "Ernie4_5ForCausalLM", .neighbours = true},
    {.name = "seed_oss",
     .model_type = "seed_oss",
     .class_name = "SeedOssForCausalLM",
     .norms = {.attention_post = "post_attention_layernorm", .mlp = ""},
     .may_have_qkv_biases = true},
}};

// The gain of a norm, under both names.
GgufTensorName gain(const GgufArchitecture& kind, std::string gguf, std::string hugging_face, int64_t size) {
  return {std::move(gguf), std::move(hugging_face), {size}, 0, kind.gemma || kind.plus_one ? 1.0f : 0.0f};
}

// The tensors of one layer.
class LayerNames {
 public:
  LayerNames(const GgufSizes& sizes, int64_t layer, std::vector<GgufTensorName>& out)
      : sizes_(sizes), layer_(layer), out_(out) {}

  void add_all() {
    const GgufArchitecture& kind = *sizes_.architecture;
    const GgufNorms& norms = kind.norms;
    const int64_t hidden = sizes_.hidden;
    const int64_t queries = sizes_.heads * sizes_.head_dim, keys = sizes_.kv_heads * sizes_.head_dim;
    const int64_t head_rows = kind.interleaves_heads ? sizes_.head_dim : 0;
    const bool qkv_bias = kind.qkv_bias || sizes_.qkv_biases;
    add_gain("attn_norm", norms.attention, hidden);
    if (kind.fused_qkv) {
      add_linear("attn_qkv", "self_attn.qkv_proj", queries + 2 * keys, hidden, qkv_bias);
    } else {
      add_linear("attn_q", "self_attn.q_proj", queries, hidden, qkv_bias, head_rows);
      add_linear("attn_k", "self_attn.k_proj", keys, hidden, qkv_bias, head_rows);
      add_linear("attn_v", "self_attn.v_proj", keys, hidden, qkv_bias);
    }
    add_head_norm("attn_q_norm", norms.query, sizes_.heads);
    add_head_norm("attn_k_norm", norms.key, sizes_.kv_heads);
    add_linear("attn_output", "self_attn.o_proj", hidden, queries, sizes_.o_bias);
    add_gain("post_attention_norm", norms.attention_post, hidden);
    if (!sizes_.parallel) add_gain("ffn_norm", norms.mlp, hidden);
    add_mlp();
    add_gain("post_ffw_norm", norms.mlp_post, hidden);
  }

 private:
  void add_mlp() {
    const GgufArchitecture& kind = *sizes_.architecture;
    const int64_t hidden = sizes_.hidden, inner = sizes_.inner;
    if (sizes_.shared_mlp) {
      for (const char* name : {"ffn_gate", "ffn_up"}) {
        add_linear(name, "shared_mlp.input_linear", inner, hidden, false);
        out_.back().stored_rows = 2 * inner;
      }
      out_.back().first_row = inner;
      return add_linear("ffn_down", "shared_mlp.output_linear", hidden, inner, false);
    }
    if (kind.fused_gate_up) {
      add_linear("ffn_up", "mlp.gate_up_proj", 2 * inner, hidden, sizes_.mlp_biases);
    } else {
      if (kind.gated) add_linear("ffn_gate", "mlp.gate_proj", inner, hidden, sizes_.mlp_biases);
      add_linear("ffn_up", kind.up, inner, hidden, sizes_.mlp_biases);
    }
    add_linear("ffn_down", kind.down, hidden, inner, sizes_.mlp_biases);
  }
  // Adds the gain of a norm of so many heads: one for all, one for each, or one of all as a row.
  void add_head_norm(const std::string& gguf, const std::string_view module, int64_t heads) {
    const GgufArchitecture& kind = *sizes_.architecture;
    if (!kind.may_have_head_gains)
      add_gain(gguf, module, kind.joint_head_norms ? heads * sizes_.head_dim : sizes_.head_dim);
    else if (sizes_.head_gains)
      add(gguf + ".weight", fmt::format("{}.weight", module), {heads, sizes_.head_dim});
  }
  std::string gguf_name(std::string_view name) const { return fmt::format("blk.{}.{}", layer_, name); }
  std::string model_name(std::string_view name) const {
    return fmt::format("{}layers.{}.{}", sizes_.prefix, layer_, name);
  }
  void add(std::string_view gguf, std::string_view hugging_face, Shape shape, int64_t head_rows = 0) {
    out_.push_back({gguf_name(gguf), model_name(hugging_face), shape, head_rows});
  }
  // Adds the gain of a norm, if it has a name.
  void add_gain(std::string_view gguf, std::string_view module, int64_t size) {
    if (module.empty()) return;
    out_.push_back(gain(*sizes_.architecture, fmt::format("{}.weight", gguf_name(gguf)),
                        fmt::format("{}.weight", model_name(module)), size));
    if (sizes_.architecture->norm_bias) add(fmt::format("{}.bias", gguf), fmt::format("{}.bias", module), {size});
  }
  void add_linear(std::string_view gguf, std::string_view hugging_face, int64_t rows, int64_t columns, bool bias,
                  int64_t head_rows = 0) {
    const auto add_tensor = [&](std::string_view tensor, Shape shape) {
      add(fmt::format("{}.{}", gguf, tensor), fmt::format("{}.{}", hugging_face, tensor), shape, head_rows);
    };
    add_tensor("weight", {rows, columns});
    if (bias) add_tensor("bias", {rows});
  }

  const GgufSizes& sizes_;
  int64_t layer_;
  std::vector<GgufTensorName>& out_;
};

}  // namespace

const GgufArchitecture* find_gguf_architecture(std::string_view name) {
  const auto found = std::ranges::find(kArchitectures, name, &GgufArchitecture::name);
  return found == kArchitectures.end() ? nullptr : &*found;
}

const GgufArchitecture* gguf_architecture_of(std::string_view class_name) {
  if (class_name == "MistralForCausalLM") return find_gguf_architecture("llama");
  if (class_name == "Olmo3ForCausalLM") return find_gguf_architecture("olmo2");
  if (class_name == "GraniteMoeHybridForCausalLM") return find_gguf_architecture("granite");
  if (class_name == "Gemma3ForConditionalGeneration") return find_gguf_architecture("gemma3");
  if (class_name == "Mistral3ForConditionalGeneration") return find_gguf_architecture("mistral3");
  const auto found = std::ranges::find(kArchitectures, class_name, &GgufArchitecture::class_name);
  return found == kArchitectures.end() ? nullptr : &*found;
}

std::string gguf_architecture_names() {
  std::string names;
  for (const GgufArchitecture& kind : kArchitectures)
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", kind.name);
  return names;
}

std::vector<GgufTensorName> gguf_tensor_names(const GgufSizes& sizes) {
  std::vector<GgufTensorName> names{
      {"token_embd.weight", sizes.prefix + "embed_tokens.weight", {sizes.vocabulary, sizes.hidden}}};
  for (int64_t layer = 0; layer < sizes.layers; ++layer) LayerNames(sizes, layer, names).add_all();
  names.push_back(gain(*sizes.architecture, "output_norm.weight", sizes.prefix + "norm.weight", sizes.hidden));
  if (sizes.architecture->norm_bias) names.push_back({"output_norm.bias", sizes.prefix + "norm.bias", {sizes.hidden}});
  if (sizes.own_head) names.push_back({"output.weight", sizes.head, {sizes.vocabulary, sizes.hidden}});
  return names;
}

std::vector<double> llama3_rope_factors(const RopeParameters& scaling, int64_t head_dim) {
  std::vector<double> factors;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double wavelength =
        2 * std::numbers::pi * std::pow(scaling.theta, 2 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double turns = scaling.original_max_position / wavelength;
    const double blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    const double clamped = std::clamp(blend, 0.0, 1.0);
    factors.push_back(1 / ((1 - clamped) / scaling.factor + clamped));
  }
  return factors;
}

namespace {

bool has_factors(const RopeParameters& scaling, std::span<const float> factors) {
  const double positions = scaling.original_max_position;
  if (!(positions >= 1 && positions <= 1e15 && scaling.high_freq_factor > scaling.low_freq_factor)) return false;
  const std::vector<double> all = llama3_rope_factors(scaling, 2 * std::ssize(factors));
  return std::ranges::equal(all, factors, [](double a, float b) { return std::abs(a - b) <= 1e-4 * a; });
}

// Returns a scaling between whose borders no pair lies: those up to a pair keep their frequency, the others are
// divided. `turns` are those of each pair in one position.
RopeParameters between_borders(RopeParameters scaling, std::span<const double> turns, size_t kept) {
  scaling.low_freq_factor = 1;
  if (kept == 0) {
    scaling.original_max_position = std::floor(0.5 / turns[0]);
    scaling.high_freq_factor = 4;
    return scaling;
  }
  const double slow = turns[kept], fast = turns[kept - 1], third = std::cbrt(fast / slow);
  scaling.original_max_position = std::round(1 / (slow * third));
  scaling.high_freq_factor = third;
  return scaling;
}

}  // namespace

std::optional<RopeParameters> llama3_scaling_of(std::span<const float> factors, double theta) {
  RopeParameters scaling{.theta = theta, .type = RopeType::Llama3};
  scaling.factor = std::ranges::max(factors);
  scaling.original_max_position = 8192;
  if (has_factors(scaling, factors)) return scaling;
  if (!(scaling.factor > 1)) return std::nullopt;
  // A pair's blend is a line over its turns, slope * turns - offset; least squares find it.
  std::vector<double> turns, on_line, blends;
  size_t kept = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    turns.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(factors.size())) /
                    (2 * std::numbers::pi));
    const double blend = (1 / static_cast<double>(factors[i]) - 1 / scaling.factor) / (1 - 1 / scaling.factor);
    if (blend > 1 - 1e-6) kept = i + 1;
    if (blend <= 1e-6 || blend > 1 - 1e-6) continue;
    on_line.push_back(turns.back());
    blends.push_back(blend);
  }
  const auto checked = [&](RopeParameters found) {
    return has_factors(found, factors) ? std::optional(found) : std::nullopt;
  };
  if (kept == factors.size()) return std::nullopt;  // a slower pair than one that is divided is not
  if (on_line.empty()) return checked(between_borders(scaling, turns, kept));
  double slope = 0, offset = 0;
  if (on_line.size() == 1) {  // with the releases' ratio of 4 between the borders
    slope = (blends[0] + 1.0 / 3) / on_line[0];
    offset = 1.0 / 3;
  } else {
    const auto count = static_cast<double>(on_line.size());
    double x = 0, y = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < on_line.size(); ++i) {
      x += on_line[i] / count;
      y += blends[i] / count;
    }
    for (size_t i = 0; i < on_line.size(); ++i) {
      xx += (on_line[i] - x) * (on_line[i] - x);
      xy += (on_line[i] - x) * (blends[i] - y);
    }
    slope = xy / xx;
    offset = slope * x - y;
  }
  // Only the ratios of the three constants count.
  if (offset > 0) {
    scaling.low_freq_factor = 1;
    scaling.original_max_position = std::round(slope / offset);
    for (const double steps : {1.0, 1000.0}) {
      scaling.high_freq_factor = std::round((1 + offset) / offset * steps) / steps;
      if (has_factors(scaling, factors)) return scaling;
    }
  }
  scaling.original_max_position = 8192;
  scaling.low_freq_factor = std::max(1e-3, offset * 8192 / slope);
  scaling.high_freq_factor = (1 + offset) * 8192 / slope;
  return checked(scaling);
}

int64_t gguf_row(const GgufTensorName& tensor, int64_t row) {
  const int64_t head_rows = tensor.interleaved_head_rows;
  if (head_rows == 0) return row;
  const int64_t in_head = row % head_rows, half = head_rows / 2;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

}  // namespace snug
