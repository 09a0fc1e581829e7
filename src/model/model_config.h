// ModelConfig holds a model directory's configuration: what the model is, and what else its files say.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/bnb.h"
#include "model/spec.h"

namespace snug {

struct ModelConfig {
  ModelSpec spec;
  std::vector<int64_t> end_tokens;              // any of them ends a reply; may be empty
  std::optional<DType> dtype;                   // of the weights when they were saved, if it is said
  std::optional<BnbQuantization> quantization;  // of the linears
  int64_t prediction_layers = 0;     // layers behind the last that predict tokens further ahead; not part of the model
  std::vector<std::string> dropout;  // keys and shares ("attention_dropout 0.1") that act in training alone
  std::vector<std::string> notes;    // a line for each thing that the files say and that is not used
};

// Reads config.json by the family that it names (model/families.h), and of a multimodal model its text model's. A model
// of a type that no family has is read as one of `family`, if that is given; notes say so, and which keys are not read.
// `source` is the file's name for messages. UserError naming file, key, found and expected for anything unsupported,
// missing or out of range.
ModelConfig parse_model_config(std::string_view json, std::string_view source, std::string_view family = "");

// Reads `<directory>/config.json`, with the end tokens of generation_config.json where that file names some.
ModelConfig read_model_config(const std::filesystem::path& directory, std::string_view family = "");

}  // namespace snug
