#include "train/gguf_sizes.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace snug {
namespace {

// Returns whether the attention factor follows from Yarn's formula, which llama.cpp uses as well.
bool has_default_factor(const RopeParameters& yarn) {
  return yarn.truncate && std::abs(yarn.attention_factor - yarn_attention_factor(yarn.factor)) < 1e-6;
}
// Returns whether it is 1, as Ministral 3's is, for which mistral3 has a key.
bool has_unit_factor(const RopeParameters& yarn, const GgufArchitecture& kind) {
  return kind.name == "mistral3" && yarn.truncate && std::abs(yarn.attention_factor - 1) < 1e-6;
}

void refuse_rope(const RopeParameters& rope, const GgufArchitecture& kind, const std::string& source) {
  const bool known = rope.type == RopeType::Default || rope.type == RopeType::Linear ||
                     (rope.type == RopeType::Llama3 && kind.has_rope_factors) ||
                     (rope.type == RopeType::LongRope && kind.has_long_rope) ||
                     (rope.type == RopeType::Yarn && (has_default_factor(rope) || has_unit_factor(rope, kind)));
  if (rope.query_growth != 0 && rope.type != RopeType::Yarn)
    user_error("{}: found queries that grow with rope scaling of type {}, expected yarn in GGUF's {}", source,
               name(rope.type), kind.name);
  if (!known)
    user_error("{}: found rope scaling of type {}{}, which GGUF's {} has no form for", source, name(rope.type),
               rope.type == RopeType::Yarn ? " with an attention factor of its own or borders within pairs" : "",
               kind.name);
  const double original = rope.original_max_position;
  if ((rope.type == RopeType::LongRope || rope.type == RopeType::Yarn) &&
      (original != std::floor(original) || original > UINT32_MAX))
    user_error(
        "{}, key 'original_max_position_embeddings': found {}, expected a whole number of 32 bits in a GGUF file",
        source, original);
}

// Refuses layers with a window whose rotary embedding is not a plain one of this base.
void refuse_local_rope(const ModelSpec& spec, double theta, const std::string& source) {
  if (spec.local_rope.type != RopeType::Default || spec.local_rope.theta != theta)
    user_error(
        "{}: found layers with a window whose rotary embedding is of type {} and base {:g}, expected {} in a GGUF file",
        source, name(spec.local_rope.type), spec.local_rope.theta, theta);
}

// What llama.cpp takes for granted of Gemma 2's and 3's attention.
void refuse_scores(const ModelSpec& spec, const GgufArchitecture& kind, const std::string& source) {
  const LayerSpec& layer = spec.layers.at(0);
  const int64_t divisor = gguf_score_divisor(kind, static_cast<int64_t>(spec.layers.size()), spec.hidden,
                                             layer.heads.heads, layer.heads.dim);
  if (std::abs(layer.attention_scale * std::sqrt(static_cast<double>(divisor)) - 1) > 1e-6)
    user_error("{}, key 'query_pre_attn_scalar': found {:g}, expected {} in a GGUF file", source,
               1 / (layer.attention_scale * layer.attention_scale), divisor);
  if (kind.name == "gemma2" && (layer.attention_cap == 0 || spec.logits_cap == 0))
    user_error("{}: found scores or logits without a soft cap, expected both in a GGUF file", source);
  if (kind.name == "gemma3") refuse_local_rope(spec, kGgufLocalTheta, source);
}

}  // namespace

GgufSizes gguf_sizes(const ModelConfig& config, const std::filesystem::path& model) {
  const ModelSpec& spec = config.spec;
  const std::string source = (model / "config.json").string();
  const GgufArchitecture* kind = gguf_architecture_of(spec.architecture);
  if (!kind)
    user_error("{}: found a {}, expected a model of GGUF's {}", source, spec.architecture, gguf_architecture_names());
  if (spec.scores)
    user_error("{}: found a model that gives scores, expected one that gives logits: GGUF has no form for its head",
               source);
  if (config.quantization)
    user_error("{}: found a model that bitsandbytes quantised, expected one in 16 or 32 bits", source);
  refuse_rope(spec.rope, *kind, source);
  const LayerSpec& first = spec.layers.at(0);
  if (kind->gemma && kind->full_interval > 0) refuse_scores(spec, *kind, source);
  if (spec.architecture == "Olmo3ForCausalLM") refuse_local_rope(spec, spec.rope.theta, source);
  if (kind->needs_own_head && spec.tied)
    user_error("{}, key 'tie_word_embeddings': found true, expected a head of its own in GGUF's {}", source,
               kind->name);
  if (kind->whole_heads && first.heads.heads * first.heads.dim != spec.hidden)
    user_error("{}: found {} heads of {} elements for a hidden size of {}, expected their product in GGUF's {}", source,
               first.heads.heads, first.heads.dim, spec.hidden, kind->name);
  const bool windows =
      !kind->may_lack_windows || std::ranges::any_of(spec.layers, [](const LayerSpec& l) { return l.window > 0; });
  if (kind->name == "exaone4" && windows && std::ssize(spec.layers) != kGgufExaoneLayersWithWindows)
    user_error("{}: found {} layers, some with a window, expected {} of these in GGUF's exaone4", source,
               spec.layers.size(), kGgufExaoneLayersWithWindows);
  if (kind->name == "command-r" && first.own_head_gains != (std::ssize(spec.layers) >= kGgufCommandRLayersWithNorms))
    user_error("{}: found {} layers {} norms of heads, expected these from {} layers on in GGUF's command-r", source,
               spec.layers.size(), first.own_head_gains ? "with" : "without", kGgufCommandRLayersWithNorms);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const auto refuse = [&](std::string_view what) {
      user_error("{}: layer {} {}, which GGUF's {} has no form for", source, i, what, kind->name);
    };
    const bool sees_window = windows && gguf_layer_has_window(*kind, static_cast<int64_t>(i));
    if (layer.window != 0 && !kind->passes_over_windows && !sees_window)
      refuse(fmt::format("sees {} tokens", layer.window));
    if (sees_window && layer.window == 0) refuse("sees all tokens");
    if (layer.local_rope != (sees_window && (kind->name == "gemma3" || kind->name == "olmo2")))
      refuse("has the rotary embedding of another kind of layer");
    if (layer.rope != gguf_layer_has_rope(*kind, static_cast<int64_t>(i), windows))
      refuse(layer.rope ? "has rotary embedding" : "has no rotary embedding");
    if (layer.rope_interleaved != kind->neighbours)
      refuse(layer.rope_interleaved ? "turns neighbours" : "turns halves");
    const bool biases = kind->may_have_biases || kind->has_biases;
    if (layer.o.bias && !biases) refuse("has a bias on o_proj");
    if (layer.gate_up.bias && !biases) refuse("has biases in its MLP");
    if (layer.qkv.bias && !biases && !kind->qkv_bias && !kind->may_have_qkv_biases) refuse("has biases on q, k and v");
    if (kind->has_biases && !layer.o.bias) refuse("has no biases");
  }
  return {.architecture = kind,
          .hidden = spec.hidden,
          .inner = first.down.in,
          .layers = static_cast<int64_t>(spec.layers.size()),
          .heads = first.heads.heads,
          .kv_heads = first.heads.kv_heads,
          .head_dim = first.heads.dim,
          .vocabulary = spec.vocabulary,
          .own_head = !spec.tied,
          .qkv_biases = first.qkv.bias,
          .o_bias = first.o.bias,
          .mlp_biases = first.gate_up.bias,
          .head_gains = first.own_head_gains,
          .parallel = first.parallel,
          .shared_mlp = first.down.parts[0].module.starts_with("shared_mlp."),
          .prefix = spec.embedding.substr(0, spec.embedding.rfind("embed_tokens")),
          .head = spec.head};
}

double gguf_yarn_log_multiplier(const RopeParameters& rope) {
  return rope.type == RopeType::Yarn && !has_default_factor(rope) ? 1 : 0;
}

std::vector<GgufRopeFactors> gguf_rope_factors(const ModelSpec& spec) {
  std::vector<GgufRopeFactors> tensors;
  const auto add = [&](std::string_view tensor, const std::vector<double>& factors) {
    tensors.push_back({tensor, std::vector<float>(factors.begin(), factors.end())});
  };
  if (spec.rope.type == RopeType::Llama3)
    add(kGgufRopeFactors, llama3_rope_factors(spec.rope, spec.layers.at(0).heads.dim));
  if (spec.rope.type == RopeType::LongRope) {
    add(kGgufLongRopeFactors, spec.rope.long_factor);
    add(kGgufShortRopeFactors, spec.rope.short_factor);
  }
  return tensors;
}

}  // namespace snug
