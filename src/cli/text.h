// Between text and tokens, as the options ask.
#pragma once

#include <memory>

#include "cli/options.h"
#include "data/dataset.h"
#include "format/hf_config.h"
#include "format/tokenizer.h"

namespace snug {

// Where samples come from and how they are rendered. `files` stands in for `data` (validation files).
DataOptions data_options(const Options& options, const std::vector<std::string>& files, int64_t vocabulary);

// Prompts as a model is asked them: a user's turn where there is a chat template, else the text itself.
class PromptEncoder {
 public:
  explicit PromptEncoder(const Options& options);
  std::vector<int32_t> encode(const std::string& prompt) const;
  std::string decode(std::span<const int32_t> ids) const;
  // The ends that the model's configuration names, and the template's end of turn.
  std::vector<int64_t> stop_tokens(const HfConfig& config) const;

 private:
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> template_;
};

}  // namespace snug
