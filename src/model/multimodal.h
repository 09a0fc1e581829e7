// Models of texts and images whose text model is one of a family: config.json has that one's keys in `text_config`, and
// files have its tensors behind a prefix.
#pragma once

#include "format/json.h"
#include "model/spec.h"

namespace snug {

// Describes such models.
struct Multimodal {
  std::string_view model_type;          // "gemma3"
  std::string_view architecture;        // "Gemma3ForConditionalGeneration"
  std::string_view text_type;           // the text model's type, where text_config does not say it
  std::string_view text_defaults = {};  // JSON of what its class has for keys that families want to be there
};

// Returns what a configuration's `model_type` names; null where it is none of these.
const Multimodal* find_multimodal(const JsonObject& config);

// Returns the text model's configuration as that of a model by itself: `text_config`, with what the whole one says of
// dtype, special tokens, quantisation and head.
Json text_config(const Multimodal& kind, const JsonObject& config);

// Gives tensors the names that they have in the whole model.
void place_in_multimodal(const Multimodal& kind, ModelSpec& text);

// Returns the name that files have for a tensor of such a model, where they are spelt as by transformers 4, and whether
// a tensor of such a model's files is of its text model.
std::string multimodal_file_name(const std::string& tensor);
bool is_of_text_model(std::string_view tensor);

inline constexpr std::string_view kTextModelPrefix = "model.language_model.";

}  // namespace snug
