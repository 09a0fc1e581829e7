// Between text and tokens, as the options ask.
#pragma once

#include <functional>
#include <memory>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/options.h"
#include "data/dataset.h"
#include "format/chat_template.h"
#include "format/hf_config.h"
#include "format/tokenizer.h"

namespace snug {

// Names of files and tokens may be no UTF-8: JSON then has U+FFFD in their place.
inline constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
inline std::string to_line(const nlohmann::ordered_json& json) { return json.dump(-1, ' ', false, kReplace); }

// What `f` returns; a UserError of it gets `place` before its text.
template <class F>
auto at_place(const std::string& place, F&& f) {
  try {
    return f();
  } catch (const UserError& error) {
    user_error("{}: {}", place, error.what());
  }
}

// Where samples come from and how they are rendered. `files` stands in for `data` (validation files). `note` is called
// with one line for each thing to be said of them.
DataOptions data_options(const Options& options, const std::vector<std::string>& files, int64_t vocabulary,
                         std::function<void(const std::string&)> note);

// Prompts as a model is asked them: a user's turn where there is a chat template, else the text itself.
class PromptEncoder {
 public:
  explicit PromptEncoder(const Options& options);
  // UserError that names `place` for broken UTF-8, a prompt without tokens, or a token that the model has no row for.
  std::vector<int32_t> encode(const std::string& prompt, const std::string& place, const HfConfig& config) const;
  // The same of a conversation that ends with a user's turn; without a template of its last text alone.
  std::vector<int32_t> encode(std::span<const Message> turns, const std::string& place, const HfConfig& config) const;
  std::string decode(std::span<const int32_t> ids) const;
  // The ends that the model's configuration names, and the template's end of turn.
  std::vector<int64_t> stop_tokens(const HfConfig& config) const;

 private:
  std::vector<int32_t> tokens_of(std::span<const Message> turns) const;

  Tokenizer tokenizer_;
  std::optional<ChatTemplate> template_;
};

}  // namespace snug
