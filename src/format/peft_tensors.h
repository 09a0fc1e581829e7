// Identifies the tensors of an adapter's file, whoever saved them: PEFT of any age, or a trainer that left wrappers'
// names in place ("module.", "_orig_mod.", the adapter's own name).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/peft.h"

namespace snug {

// PEFT's names, and those of adapters in snug's tables, begin with this; the model's names follow.
constexpr std::string_view kPeftPrefix = "base_model.model.";

enum class PeftTensorKind {
  LoraA,
  LoraB,
  Magnitude,  // norms of an adapted weight's rows
  Whole,      // a parameter of the model, trained as a whole or saved beside the adapter
  Base,       // a parameter of the model as PEFT found it
  Tokens,     // rows of an embedding or head, in the order of trainable_token_indices
  Other
};

struct PeftTensor {
  PeftTensorKind kind = PeftTensorKind::Other;
  // Holds the parameter's name in snug's tables: of the adapter's matrix, or of the model
  // ("model.embed_tokens.weight"). Of Other it is what the name is without wrappers', or empty: a parameter of a module
  // that the adapter saves whole need not be a weight or a bias.
  std::string param;
  std::string adapter;  // the name that PEFT had for the adapter; may be empty
};

// Returns what a tensor of an adapter's file is, whose paths are spelt so.
PeftTensor parse_peft_tensor(std::string_view name, const Spelling& spelling = {});

// Ends the names of the norms of an adapted weight's rows.
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";

// Returns why a tensor of kind Other is not read, for messages.
std::string_view meaning_of_other(std::string_view name);

}  // namespace snug
