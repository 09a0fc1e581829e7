#include "model/multimodal.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace snug {
namespace {

constexpr std::string_view kPrefix = "model.", kFilePrefix = "language_model.", kTextConfig = "text_config";

constexpr std::array<Multimodal, 2> kKinds{
    {{.model_type = "gemma3",
      .architecture = "Gemma3ForConditionalGeneration",
      .text_type = "gemma3_text",
      .text_defaults = R"({"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                           "num_attention_heads": 8, "vocab_size": 262208})"},
     {.model_type = "mistral3", .architecture = "Mistral3ForConditionalGeneration", .text_type = "mistral"}}};

}  // namespace

const Multimodal* find_multimodal(const JsonObject& config) {
  const std::string type = config.string("model_type", "");
  const auto found = std::ranges::find(kKinds, type, &Multimodal::model_type);
  return found == kKinds.end() ? nullptr : &*found;
}

Json text_config(const Multimodal& kind, const JsonObject& config) {
  Json text = config.object(kTextConfig).value();
  if (!text.contains("model_type")) text["model_type"] = kind.text_type;
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
    *name = fmt::format("{}{}", kTextModelPrefix, name->substr(kPrefix.size()));
}

std::string multimodal_file_name(const std::string& tensor) {
  if (!tensor.starts_with(kTextModelPrefix)) return fmt::format("{}{}", kFilePrefix, tensor);
  return fmt::format("{}{}{}", kFilePrefix, kPrefix, tensor.substr(kTextModelPrefix.size()));
}

bool is_of_text_model(std::string_view tensor) {
  return tensor.starts_with(kTextModelPrefix) || tensor.starts_with(kFilePrefix) || tensor.starts_with("lm_head.");
}

}  // namespace snug
