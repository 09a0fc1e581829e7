// Models of texts and images whose text model is one of a family: config.json has that one's keys in `text_config`, or
// beside `vision_config`, and files have its tensors under names of their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"
#include "format/spelling.h"
#include "model/spec.h"

namespace snug {

// Describes such models.
struct Multimodal {
  std::string_view model_type;          // "gemma3"
  std::string_view architecture;        // "Gemma3ForConditionalGeneration"
  std::string_view text_type;           // the text model's type, where text_config does not say it
  std::string_view text_defaults = {};  // JSON of what its class has for keys that families want to be there
  // Gives the text model the tower; null: it is not used.
  void (*add_tower)(ModelSpec& text, const JsonObject& config) = nullptr;
  std::string_view text_prefix = "model.language_model.", head_prefix = "";  // of the text model's tensors
};

// Returns the types of all of them, in a fixed order.
std::vector<std::string_view> multimodal_types();

// Returns what a configuration's `model_type` names; null where it is none of these.
const Multimodal* find_multimodal(const JsonObject& config);

// Returns the text model's configuration as that of a model by itself: `text_config`, with what the whole one says of
// dtype, special tokens, quantisation and head.
Json text_config(const Multimodal& kind, const JsonObject& config);

// Gives tensors the names that they have in the whole model.
void place_in_multimodal(const Multimodal& kind, ModelSpec& text);

// Returns the spellings that files of the model whose embedding has this name may have besides ours, which is that of
// transformers since 4.52; none of a model whose names never changed. Files of weights have them to this day; of
// adapters, those that were saved before.
const std::vector<Spelling>& spellings_of(std::string_view embedding);
// Returns whether a tensor of such a model's files is of its text model.
bool is_of_text_model(std::string_view tensor);
// Returns whether a tensor of any model's files is of a tower and its projector that stand beside a text model whose
// own tensors have the names that they have without them (OmniLMM's).
bool is_beside_text_model(std::string_view tensor);
// Returns whether the model whose embedding has this name is one of such; of OmniLMM no name says it.
bool is_multimodal(std::string_view embedding);

}  // namespace snug
