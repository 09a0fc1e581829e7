// A model directory's configuration: what the model is, and what else its files say.
#pragma once

#include <filesystem>
#include <optional>

#include "format/bnb.h"
#include "model/spec.h"

namespace snug {

struct ModelConfig {
  ModelSpec spec;
  std::vector<int64_t> end_tokens;              // any of them ends a reply; may be empty
  std::optional<DType> dtype;                   // of the weights when they were saved, if it is said
  std::optional<BnbQuantization> quantization;  // of the linears
  int64_t prediction_layers = 0;     // behind the last layer, for tokens further ahead; not part of the model
  std::vector<std::string> dropout;  // keys and shares ("attention_dropout 0.1") that act in training alone
  std::vector<std::string> notes;    // a line for each thing that the files say and that is not used
};

// Reads config.json and generation_config.json. UserError as parse_hf_config() (format/hf_config.h) throws it.
ModelConfig read_model_config(const std::filesystem::path& directory);

}  // namespace snug
