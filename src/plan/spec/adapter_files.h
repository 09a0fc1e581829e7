// Reads what an adapter's weights file holds, and fits the model to it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "format/peft.h"
#include "format/safetensors.h"
#include "model/spec.h"

namespace snug {

// Names the rows of a parameter that a tensor holds, in the order of the tensor.
struct TokenRows {
  std::string tensor;
  std::vector<int64_t> rows;
};

struct AdapterFiles {
  SafetensorsIndex index;
  // Holds names of tensors by parameter: the adapter's matrices, and those that replace the model's own parameters.
  std::map<std::string, std::string> tensors;
  std::map<std::string, TokenRows> tokens;  // by parameter
  PeftConfig config;
  std::string embedding, head;  // the model's parameters of these names
  Spelling spelling = {};       // of the file's names

  // Returns the model's own parameters that are replaced, wholly or in rows.
  std::vector<std::string> replaced() const;
  std::string where(const std::string& tensor) const;  // file and tensor, for messages
};

// Opens the adapter in a directory, whose names may have any spelling of the model's. Throws UserError for a tensor of
// unknown meaning, and for what the configuration names and the file lacks.
AdapterFiles open_adapter(const std::filesystem::path& directory, std::string embedding, std::string head);

// Turns the base into the model with the adapter: it gets as many tokens as the adapter's embedding has rows, and a
// head of its own where PEFT parts it from the embedding. Throws UserError if embedding and head differ in rows.
void fit_to_adapter(ModelSpec& model, const AdapterFiles& files);

// Returns whether two tensors of a file hold equal bytes; it keeps none of them in memory.
bool same_bytes(const SafetensorsIndex& index, const SafetensorsEntry& a, const SafetensorsEntry& b);

}  // namespace snug
