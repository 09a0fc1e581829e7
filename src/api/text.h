// Converts between text and tokens, as the options ask.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include <nlohmann/json.hpp>

#include "api/options.h"
#include "base/error.h"
#include "data/dataset.h"
#include "format/chat_template.h"
#include "format/prompt_format.h"
#include "format/tokenizer.h"

namespace snug {

// Names of files and tokens may be invalid UTF-8: JSON then has U+FFFD in place of the bytes.
inline constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
inline std::string to_line(const nlohmann::ordered_json& json) { return json.dump(-1, ' ', false, kReplace); }

// Returns the last name of a path or of a hub's id, whether or not a slash ends it.
inline std::string last_name(const std::filesystem::path& path) {
  const std::filesystem::path normal = path.lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

// Returns what `f` returns; a UserError of it gets `place` before its text.
template <class F>
auto at_place(const std::string& place, F&& f) {
  try {
    return f();
  } catch (const UserError& error) {
    user_error("{}: {}", place, error.what());
  }
}

// Returns what becomes of records that have a null field where they need a value.
EmptyRecords empty_records(const JobConfig& options);

// Returns where samples come from and how they are rendered. `files` stands in for `data` (validation files). `note` is
// called with a line for each thing to report: here for directories, by the reader for files.
DataOptions data_options(const JobConfig& options, const std::vector<std::string>& files, int64_t vocabulary,
                         PromptFormat format, std::function<void(const std::string&)> note);

// Returns the directory whose tokenizer is used: the adapter's if it has one (to which training may have added tokens),
// else the model's.
std::filesystem::path tokenizer_directory(const JobConfig& options);

// Loads the tokenizer of that directory, with the new tokens.
Tokenizer load_tokenizer(const JobConfig& options);

// Returns how the model of the options is asked and where its replies end, with their adapter if there is one. With a
// prompt pattern auto means no template: the pattern is all of the prompt. `tokenizer` is that of
// load_tokenizer(); null if there is none.
PromptFormat prompt_format_of(const JobConfig& options, const ModelTokens& model, const Tokenizer* tokenizer);

// Encodes prompts as a model is asked them: as a user's turn if there is a chat template, else as the text itself.
class PromptEncoder {
 public:
  // `system`: the text that every conversation begins with, if it is not empty. UserError where the model has a
  // template that it cannot be asked by, and where there is a system text and no template.
  explicit PromptEncoder(const JobConfig& options, const std::string& system = "");
  // Of several BOS at the beginning one is left, which a line says. UserError that names `place` for broken UTF-8, a
  // prompt without tokens, or a token that the model has no row for.
  std::vector<int32_t> encode(const std::string& prompt, const std::string& place) const;
  // Returns the tokens of a conversation that ends with a user's turn; without a template, of its last text alone.
  std::vector<int32_t> encode(std::span<const Message> turns, const std::string& place) const;
  const Tokenizer& tokenizer() const { return tokenizer_; }
  // Decodes a reply token by token, without special tokens. It refers to this.
  TokenStream stream() const { return {tokenizer_, /*skip_special=*/true}; }
  const PromptFormat& format() const { return format_; }
  // Returns the tokens that end a reply, for Generator.
  std::vector<int64_t> stop_tokens() const { return {format_.end_tokens.begin(), format_.end_tokens.end()}; }

 private:
  std::vector<int32_t> tokens_of(std::span<const Message> turns) const;

  ModelTokens model_;
  std::string system_;
  Tokenizer tokenizer_;
  PromptFormat format_;
};

}  // namespace snug
