#include "model/multimodal.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/towers.h"

namespace snug {
namespace {

constexpr std::string_view kTextModelPrefix = "model.language_model.", kPrefix = "model.",
                           kFilePrefix = "language_model.", kTextConfig = "text_config";

constexpr std::array<Multimodal, 6> kKinds{
    {{.model_type = "gemma3",
      .architecture = "Gemma3ForConditionalGeneration",
      .text_type = "gemma3_text",
      .text_defaults = R"({"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                           "num_attention_heads": 8, "vocab_size": 262208})"},
     {.model_type = "mistral3", .architecture = "Mistral3ForConditionalGeneration", .text_type = "mistral"},
     {.model_type = "qwen2_vl",
      .architecture = "Qwen2VLForConditionalGeneration",
      .text_type = "qwen2",
      .text_defaults = R"({"rms_norm_eps": 1e-5})",
      .add_tower = towers::qwen2_vl},
     {.model_type = "qwen2_5_vl",
      .architecture = "Qwen2_5_VLForConditionalGeneration",
      .text_type = "qwen2",
      .text_defaults = R"({"rms_norm_eps": 1e-5})",
      .add_tower = towers::qwen2_5_vl},
     {.model_type = "minicpmv",
      .architecture = "MiniCPMV",
      .text_type = "llama",
      .add_tower = towers::minicpm_v,
      .text_prefix = "llm.model.",
      .head_prefix = "llm."},
     {.model_type = "omnilmm",
      .architecture = "OmniLMMForCausalLM",
      .text_type = "mistral",
      .add_tower = towers::omnilmm,
      .text_prefix = kPrefix}}};

// Says of a rotary embedding with several axes what a text needs of it: positions of a text are alike on all axes.
void take_axes_off(Json& text) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!text.contains(key) || !text[key].is_object()) continue;
    Json& rope = text[key];
    rope.erase("mrope_section");
    for (const char* type : {"type", "rope_type"})
      if (rope.value(type, "") == "mrope") rope[type] = "default";
  }
}

}  // namespace

std::vector<std::string_view> multimodal_types() {
  std::vector<std::string_view> types;
  for (const Multimodal& kind : kKinds) types.push_back(kind.model_type);
  return types;
}

const Multimodal* find_multimodal(const JsonObject& config) {
  const std::string type = config.string("model_type", "");
  const auto found = std::ranges::find(kKinds, type, &Multimodal::model_type);
  return found == kKinds.end() ? nullptr : &*found;
}

Json text_config(const Multimodal& kind, const JsonObject& config) {
  Json text = kind.add_tower && !config.has(kTextConfig) ? config.value() : config.object(kTextConfig).value();
  text.erase("vision_config");
  // Text models that have no class of their own have a type that no family has.
  if (kind.add_tower || !text.contains("model_type")) text["model_type"] = kind.text_type;
  if (kind.add_tower) text.erase("architectures"), take_axes_off(text);
  const Json defaults = kind.text_defaults.empty() ? Json::object() : Json::parse(kind.text_defaults);
  for (const auto& [key, value] : defaults.items())
    if (!text.contains(key)) text[key] = value;
  for (const char* key : {"dtype", "torch_dtype", "bos_token_id", "eos_token_id", "quantization_config",
                          "compression_config", "tie_word_embeddings"})
    if (config.has(key)) text[key] = config.at(key);
  return text;
}

void place_in_multimodal(const Multimodal& kind, ModelSpec& text) {
  text.architecture = kind.architecture;
  for (std::string* name : {&text.embedding, &text.layer_prefix, &text.final_norm.weight})
    *name = fmt::format("{}{}", kind.text_prefix, name->substr(kPrefix.size()));
  text.head = fmt::format("{}{}", kind.head_prefix, text.head);
}

const std::vector<Spelling>& spellings_of(std::string_view embedding) {
  // Where a model's text alone was loaded, as Gemma3ForCausalLM, names are as the second has them, too.
  static const std::vector<Spelling> kNone,
      kSpellings{{{{kTextModelPrefix, "language_model.model."}, {"", kFilePrefix}}},  // Gemma 3's and Mistral 3's
                 {{{kTextModelPrefix, kPrefix}, {"model.visual.", "visual."}}}};      // Qwen2-VL's
  return embedding.starts_with(kTextModelPrefix) ? kSpellings : kNone;
}

bool is_of_text_model(std::string_view tensor) {
  return std::ranges::any_of(
      std::array{kTextModelPrefix, kFilePrefix, std::string_view("lm_head."), std::string_view("model.layers."),
                 std::string_view("model.embed_tokens."), std::string_view("model.norm."), std::string_view("llm.")},
      [&](std::string_view prefix) { return tensor.starts_with(prefix); });
}

bool is_beside_text_model(std::string_view tensor) {
  return tensor.starts_with("model.vision_tower.") || tensor.starts_with("model.resampler.");
}

bool is_multimodal(std::string_view embedding) {
  return std::ranges::any_of(kKinds, [&](const Multimodal& kind) {
    return kind.text_prefix != kPrefix && embedding.starts_with(kind.text_prefix);
  });
}

}  // namespace snug
