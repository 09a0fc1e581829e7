// What an adapter's weights file holds, and the model that it is for.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "format/peft.h"
#include "format/safetensors.h"
#include "model/spec.h"

namespace snug {

// Rows of a parameter, in the order of the tensor that holds them.
struct TokenRows {
  std::string tensor;
  std::vector<int64_t> rows;
};

struct AdapterFiles {
  SafetensorsIndex index;
  // Names of tensors by the parameter that they are: the adapter's halves, and what replaces the model's own.
  std::map<std::string, std::string> tensors;
  std::map<std::string, TokenRows> tokens;  // by parameter
  PeftConfig config;
  std::string embedding, head;  // the model's parameters of these names

  // Whether the configuration says that a parameter of the model is saved whole.
  bool is_saved(const std::string& param) const;
  // The model's own parameters that are replaced, wholly or in rows.
  std::vector<std::string> replaced() const;
  std::string where(const std::string& tensor) const;  // file and tensor, for messages
};

// UserError for a tensor of unknown meaning, and for what the configuration names and the file lacks.
AdapterFiles open_adapter(const std::filesystem::path& directory, std::string embedding, std::string head);

// Makes of the base the model with the adapter: as many tokens as its embedding has rows, and a
// head of its own where PEFT parts it from the embedding. UserError if embedding and head differ in rows.
void fit_to_adapter(ModelSpec& model, const AdapterFiles& files);

// Whether two tensors of a file hold the same bytes; nothing of them is kept.
bool same_bytes(const SafetensorsIndex& index, const SafetensorsEntry& a, const SafetensorsEntry& b);

}  // namespace snug
