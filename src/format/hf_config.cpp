#include "format/hf_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/option_name.h"
#include "format/quantization_config.h"
#include "format/token_ids.h"

namespace snug {
namespace {

// Sizes beyond these are nonsense in a config, and products of them stay far below 2^63.
constexpr int64_t kMaxHeads = 1 << 12, kMaxVocabulary = 1 << 24;

constexpr int64_t kMaxHeadDim = 256;  // what attention is built for

// Models with experts have these keys: any count means another block than the dense one.
constexpr std::array<std::string_view, 4> kExpertKeys{"num_experts", "num_local_experts", "n_routed_experts",
                                                      "moe_intermediate_size"};

// These keys ask for other layers or other sums, with the value that asks for none.
constexpr std::array<std::pair<std::string_view, double>, 7> kFactorKeys{{{"embedding_multiplier", 1},
                                                                          {"residual_multiplier", 1},
                                                                          {"logits_scaling", 1},
                                                                          {"logit_scale", 1},
                                                                          {"attn_logit_softcapping", 0},
                                                                          {"final_logit_softcapping", 0},
                                                                          {"clip_qkv", 0}}};
constexpr std::array<std::string_view, 8> kSwitchKeys{
    "use_bidirectional_attention", "use_qk_norm",    "qk_norm", "qk_layernorm", "alibi",
    "use_parallel_residual",       "attention_bias", "mlp_bias"};

// The share of a head that turns.
constexpr const char* kShare = "partial_rotary_factor";

// Families of models give these names to dropout, which matters only in training.
constexpr std::array<std::string_view, 10> kDropoutKeys{
    "attention_dropout", "attn_dropout",      "attn_pdrop",     "resid_pdrop",         "residual_dropout",
    "embd_pdrop",        "embedding_dropout", "hidden_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"};

// Joins alternatives for a message: "a, b or c".
std::string either(std::span<const std::string> texts) {
  std::string text;
  for (size_t i = 0; i < texts.size(); i++) text += (i == 0 ? "" : i + 1 < texts.size() ? ", " : " or ") + texts[i];
  return text;
}

constexpr std::string_view kHead = "ForCausalLM", kClassifier = "ForSequenceClassification";

// Returns whether a name is that of a family's class for sequence classification.
bool is_classifier(std::string_view name, std::span<const HfFamily> families) {
  return std::ranges::any_of(families, [&](const HfFamily& family) {
    const std::string_view stem = family.architecture.substr(0, family.architecture.size() - kHead.size());
    return lower_case(name) == lower_case(fmt::format("{}{}", stem, kClassifier));
  });
}

// Returns whether the model gives scores. Its class decides how many labels there are by id2label, else two.
bool parse_scores(const JsonObject& config, const HfFamily& family) {
  if (!config.has("architectures")) return false;
  const Json& names = config.at("architectures");
  if (std::ranges::none_of(names, [&](const Json& name) {
        return name.is_string() && is_classifier(name.get<std::string>(), std::span(&family, 1));
      }))
    return false;
  constexpr const char *kLabels = "id2label", *kCount = "num_labels";
  const bool named = config.has(kLabels);
  if (named && (!config.at(kLabels).is_object() || config.at(kLabels).size() != 1))
    config.fail(kLabels, "one label: a model that gives a score");
  if (!named && config.integer(kCount, 1, INT32_MAX, 2) != 1)
    config.fail(kCount, "1, or id2label with one label: a model that gives a score");
  return true;
}

// Throws UserError for names of models that end in another head than a language model's, or in none.
void refuse_other_heads(const JsonObject& config, std::span<const HfFamily> families, std::string_view name) {
  constexpr std::array<std::string_view, 6> kHeads{
      "ForTokenClassification",   "ForQuestionAnswering", kClassifier,
      "ForConditionalGeneration", "ForRewardModel",       "ForTextEncoding"};
  const auto known = [&] {
    std::vector<std::string_view> names;
    for (const HfFamily& family : families) names.push_back(family.architecture);
    return fmt::format("({})", fmt::join(names, ", "));
  };
  const auto is_headless = [&](const HfFamily& family) {
    const std::string_view stem = family.architecture.substr(0, family.architecture.size() - kHead.size());
    return lower_case(name) == lower_case(std::string(stem) + "Model");
  };
  // The model was saved without its head, whose weights are the embedding's.
  const std::string type = config.string("model_type", "");
  const bool tied = std::ranges::any_of(families, [&](const HfFamily& family) {
    return family.model_type == type && config.boolean("tie_word_embeddings", family.tie_word_embeddings);
  });
  if (!tied && (name == "AutoModel" || std::ranges::any_of(families, is_headless)))
    config.fail("architectures",
                fmt::format("a model with its language-model head {}: in this one the head is missing", known()));
  if (std::ranges::any_of(kHeads, [&](std::string_view head) { return name.ends_with(head); }))
    config.fail(
        "architectures",
        fmt::format("a model with a language-model head {}, or for sequence classification with one label", known()));
}

size_t find_family(const JsonObject& config, std::span<const HfFamily> families,
                   std::span<const std::string_view> other_types, std::vector<std::string>& notes) {
  std::vector<std::string> names;
  if (config.has("architectures")) {
    const Json& list = config.at("architectures");
    if (!list.is_array() || !std::ranges::all_of(list, [](const Json& item) { return item.is_string(); }))
      config.fail("architectures", "a list of names");
    for (const Json& item : list) names.push_back(item.get<std::string>());
  }
  for (const std::string& name : names)
    if (!is_classifier(name, families)) refuse_other_heads(config, families, name);
  const std::string type = config.string("model_type", "");
  for (size_t i = 0; i < families.size(); i++) {
    const std::string usual = lower_case(families[i].architecture);
    const bool named = std::ranges::any_of(names, [&](const std::string& name) {
      return lower_case(name) == usual || is_classifier(name, families.subspan(i, 1));
    });
    if (type.empty() ? !named : type != families[i].model_type) continue;
    if (!names.empty() && !named)
      notes.push_back(fmt::format("config.json: architectures names '{}'; model_type decides: {}", names[0], type));
    return i;
  }
  std::vector<std::string> types, classes;
  for (const HfFamily& family : families) {
    types.push_back(fmt::format("\"{}\"", family.model_type));
    classes.push_back(fmt::format("[\"{}\"]", family.architecture));
  }
  if (type.empty() && !names.empty()) config.fail("architectures", either(classes));
  std::vector<std::string> others;
  for (const std::string_view other : other_types) others.push_back(fmt::format("\"{}\"", other));
  const std::string known =
      either(types) + (others.empty() ? "" : fmt::format(", or of images and texts {}", either(others)));
  config.fail("model_type", type.empty() ? known
                                         : fmt::format("{}; {} takes it for one of {}, if it computes the same", known,
                                                       option_name("family"), others.empty() ? "these" : "the former"));
}

// Returns a size that the file leaves out: the class's number, or the number that follows from other sizes if the class
// has none or the file says null.
int64_t fallback_of(const JsonObject& config, std::string_view key, std::optional<int64_t> of_class, int64_t derived) {
  return config.value().contains(key) ? derived : of_class.value_or(derived);
}

void parse_sizes(const JsonObject& config, const HfFamily& family, HfConfig& result) {
  constexpr std::string_view kKvHeads = "num_key_value_heads";
  result.hidden_size = config.integer("hidden_size", 1, kMaxWidth);
  result.intermediate_size = config.integer("intermediate_size", 1, kMaxWidth);
  result.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  result.heads = config.integer("num_attention_heads", 1, kMaxHeads);
  result.kv_heads =
      config.integer(kKvHeads, 1, kMaxHeads, fallback_of(config, kKvHeads, family.kv_heads, result.heads));
  result.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  result.max_position = config.integer("max_position_embeddings", 1, kMaxPosition, family.max_position);
  if (result.heads % result.kv_heads != 0) {
    const std::string absent =
        config.has(kKvHeads) ? "" : fmt::format("; without the key {} has {}", family.model_type, result.kv_heads);
    config.fail(kKvHeads, fmt::format("a divisor of num_attention_heads, {}{}", result.heads, absent));
  }
  const int64_t derived = result.hidden_size / result.heads;
  const bool derives = config.value().contains("head_dim") ? !config.has("head_dim") : !family.head_dim;
  if (derives && result.hidden_size % result.heads != 0) {
    config.fail("num_attention_heads", fmt::format("a divisor of hidden_size, {}, or a head_dim", result.hidden_size));
  }
  result.head_dim =
      config.integer("head_dim", 1, kMaxHeadDim, fallback_of(config, "head_dim", family.head_dim, derived));
  if (result.head_dim % 2 != 0 || result.head_dim > kMaxHeadDim) {
    config.fail(config.has("head_dim") ? "head_dim" : "num_attention_heads",
                fmt::format("an even number of values a head of at most {}, not {}", kMaxHeadDim, result.head_dim));
  }
}

// "gelu" as Gemma's first files spell it was tanh's all the same, in what they were trained with; hidden_activation
// came with the classes that take both at their word, and counts where both are there.
void refuse_other_activations(const JsonObject& config, const HfFamily& family) {
  const bool renamed = family.gelu_is_by_tanh && config.has("hidden_activation");
  const std::string_view key = renamed ? "hidden_activation" : "hidden_act", usual = family.activation;
  const std::string_view other = usual == "silu" ? "swish" : family.gelu_is_by_tanh && !renamed ? "gelu" : usual;
  const std::string found = config.string(key, std::string(usual));
  if (found != usual && found != other) config.fail(key, fmt::format("\"{}\"", usual));
}

bool owns(const HfFamily& family, std::string_view key) {
  return std::ranges::find(family.own_keys, key) != family.own_keys.end();
}

// Takes the share of a head that turns off a configuration. Returns one that was not 1; null if there was none.
Json take_share_off(Json& json) {
  std::vector<Json*> places{&json};
  for (const char* ropes : {"rope_parameters", "rope_scaling"}) {
    if (!json.contains(ropes)) continue;
    places.push_back(&json[ropes]);
    for (const char* layers : {"full_attention", "sliding_attention"})
      if (places.back()->is_object() && json[ropes].contains(layers)) places.push_back(&json[ropes][layers]);
  }
  Json found;
  for (Json* place : places) {
    if (!place->is_object() || !place->contains(kShare)) continue;
    if (const Json& share = (*place)[kShare]; !share.is_null() && share != 1) found = share;
    place->erase(kShare);
  }
  return found;
}

// Reads the rotary embedding as the family's class does: most turn whole heads, whatever share of them a file says,
// where the embedding is the plain one; to a scaled one they cannot apply a share.
RopeParameters parse_familys_rope(const JsonObject& config, const HfFamily& family, HfConfig& result) {
  const RopeDefaults defaults{family.rope_theta, family.partial_rotary_factor, family.original_max_position,
                              family.rope_alpha};
  if (owns(family, kShare)) return parse_rope(config, defaults, result.head_dim, result.max_position);
  Json whole = config.value();
  const Json share = take_share_off(whole);
  const RopeParameters rope =
      parse_rope(JsonObject(whole, config.source()), defaults, result.head_dim, result.max_position);
  if (share.is_null()) return rope;
  if (rope.type != RopeType::Default)
    user_error("{}, key '{}': found {}, expected 1 or nothing beside rope_type {}: a {} turns whole heads",
               config.source(), kShare, share.dump(), name(rope.type), family.model_type);
  result.notes.push_back(fmt::format("config.json: passed over, as transformers does: {} {}; a {} turns whole heads",
                                     kShare, share.dump(), family.model_type));
  return rope;
}

void refuse_unsupported(const JsonObject& config, const HfFamily& family) {
  refuse_other_activations(config, family);
  // Whether a key is there and no business of the family's own.
  const auto stray = [&](std::string_view key) { return config.has(key) && !owns(family, key); };
  if (stray("rope_parameters") && has_rope_by_layers(config)) config.fail("rope_parameters", "those of all layers");
  for (const std::string_view key : kExpertKeys) {
    if (stray(key) && config.at(key) != 0) config.fail(key, "none: a dense model");
  }
  for (const auto& [key, plain] : kFactorKeys) {
    if (stray(key) && config.at(key) != plain) config.fail(key, fmt::format("{} or nothing", plain));
  }
  for (const std::string_view key : kSwitchKeys) {
    if (stray(key) && config.at(key) != false) config.fail(key, "false or nothing");
  }
}

std::vector<std::string> parse_dropout(const JsonObject& config, const HfFamily& family) {
  std::vector<std::string> found;
  for (const std::string_view key : kDropoutKeys) {
    const double usual = key == "attention_dropout" || key == "residual_dropout" ? family.dropout : 0;
    if (const double share = config.number(key, 0, 1, usual); share != 0)
      found.push_back(fmt::format("{} {}", key, share));
  }
  return found;
}

std::vector<std::string> parse_left_out(const JsonObject& bnb) {
  constexpr std::string_view kKey = "llm_int8_skip_modules";
  std::vector<std::string> names;
  if (!bnb.has(kKey)) return names;
  const Json& list = bnb.at(kKey);
  if (!list.is_array() || !std::ranges::all_of(list, [](const Json& name) { return name.is_string(); }))
    bnb.fail(kKey, "a list of modules' names");
  for (const Json& name : list) names.push_back(name.get<std::string>());
  return names;
}

std::optional<BnbQuantization> parse_bnb(const JsonObject& config, std::vector<std::string>& notes) {
  const std::optional<JsonObject> found = find_quantization(config);
  if (!found) return std::nullopt;
  const JsonObject& bnb = *found;
  if (const auto method = quantization_method(bnb)) {
    notes.push_back(fmt::format("config.json: quantised by {}: read as the plain model that 'snug import' makes of it",
                                name(*method)));
    return std::nullopt;
  }
  // Files from before there was a choice do not name the method.
  const bool in_4bit = bnb.boolean("load_in_4bit", false), in_8bit = bnb.boolean("load_in_8bit", false);
  if (bnb.string("quant_method", in_4bit || in_8bit ? "bitsandbytes" : "") != "bitsandbytes")
    bnb.fail("quant_method",
             "\"bitsandbytes\", \"gptq\", \"awq\", \"compressed-tensors\" or \"fp8\": what others store is not read");
  if (in_4bit == in_8bit) bnb.fail("load_in_4bit", "either this or load_in_8bit");
  if (in_8bit) {
    if (bnb.boolean("llm_int8_has_fp16_weight", false)) bnb.fail("llm_int8_has_fp16_weight", "false");
    return BnbQuantization{.left_out = parse_left_out(bnb)};
  }
  if (bnb.string("bnb_4bit_quant_type", "fp4") != "nf4") bnb.fail("bnb_4bit_quant_type", "\"nf4\"");
  if (bnb.string("bnb_4bit_quant_storage", "uint8") != "uint8") bnb.fail("bnb_4bit_quant_storage", "\"uint8\"");
  bnb.integer("bnb_4bit_blocksize", 64, 64, 64);
  return BnbQuantization{
      .nf4 = true, .nested = bnb.boolean("bnb_4bit_use_double_quant", false), .left_out = parse_left_out(bnb)};
}

std::optional<DType> parse_dtype(const JsonObject& config) {
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";
  const std::string spelled = config.string(key, "");
  if (spelled == "bfloat16") return DType::BF16;
  if (spelled == "float16") return DType::F16;
  if (spelled == "float32") return DType::F32;
  if (spelled.empty() || spelled == "auto") return std::nullopt;
  config.fail(key, "\"bfloat16\", \"float16\" or \"float32\"");
}

}  // namespace

HfConfig parse_hf_config(const JsonObject& config, std::span<const HfFamily> families,
                         std::span<const std::string_view> other_types) {
  HfConfig result;
  result.family = find_family(config, families, other_types, result.notes);
  const HfFamily& family = families[result.family];
  result.architecture = family.architecture;
  result.activation = family.activation;
  parse_sizes(config, family, result);
  result.rope = parse_familys_rope(config, family, result);
  refuse_unsupported(config, family);
  result.quantization = parse_bnb(config, result.notes);
  result.rms_norm_eps = config.number(family.epsilon_key, 1e-12, 1, family.rms_norm_eps);
  result.tie_word_embeddings = config.boolean("tie_word_embeddings", family.tie_word_embeddings);
  const TokenIds tokens(config, "config.json", result.vocabulary, result.notes);
  result.bos = tokens.one("bos_token_id", family.bos);
  result.eos = tokens.several("eos_token_id", family.eos);
  result.dropout = parse_dropout(config, family);
  for (const char* key : {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"})
    result.prediction_layers = std::max(result.prediction_layers, config.integer(key, 0, kMaxLayers, 0));
  result.dtype = parse_dtype(config);
  result.scores = parse_scores(config, family);
  return result;
}

}  // namespace snug
