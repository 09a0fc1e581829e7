#include "cli/text.h"

#include <algorithm>

#include "base/error.h"
#include "format/unicode.h"

namespace snug {
DataOptions data_options(const Options& options, const std::vector<std::string>& files, int64_t vocabulary,
                         std::function<void(const std::string&)> note) {
  DataOptions data;
  data.files.assign(files.begin(), files.end());
  data.note = std::move(note);
  if (options.data_format != "auto") data.format = data_format_from_name(options.data_format);
  data.shape.columns = options.columns;
  for (const auto& [theirs, role] : options.roles) data.shape.roles[theirs] = role_from_name(role);
  if (!options.prompt_pattern.empty()) data.shape.prompt = options.prompt_pattern;
  data.chat_template = options.chat_template;
  data.train_on = options.train_on == "all" ? TrainOn::All : TrainOn::Assistant;
  data.max_samples = options.max_samples;
  data.vocabulary = vocabulary;
  return data;
}

PromptEncoder::PromptEncoder(const Options& options) : tokenizer_(Tokenizer::load(options.model)) {
  const std::string model_template = tokenizer_.chat_template_text().value_or("");
  const bool plain = options.chat_template == "none" || (options.chat_template == "auto" && model_template.empty());
  if (!plain) template_ = ChatTemplate::choose(options.chat_template, model_template, encoder_of(tokenizer_).special);
}

std::vector<int32_t> PromptEncoder::encode(const std::string& prompt, const std::string& place,
                                           const HfConfig& config) const {
  const Message turn{ChatRole::User, prompt};
  return encode(std::span(&turn, 1), place, config);
}

std::vector<int32_t> PromptEncoder::encode(std::span<const Message> turns, const std::string& place,
                                           const HfConfig& config) const {
  const std::string& prompt = turns.back().content;
  if (const auto offset = find_invalid_utf8(prompt))
    user_error("{}: found byte 0x{:02x} at offset {}, which is not UTF-8", place,
               static_cast<unsigned char>(prompt[*offset]), *offset);
  const std::vector<int32_t> ids = at_place(place, [&] { return tokens_of(turns); });
  if (ids.empty()) user_error("{}: found an empty text, expected at least one token", place);
  const int32_t largest = *std::ranges::max_element(ids);
  if (largest >= config.vocabulary)
    user_error("{}: found token id {}, expected less than {}, the model's vocabulary", place, largest,
               config.vocabulary);
  return ids;
}

std::vector<int32_t> PromptEncoder::tokens_of(std::span<const Message> turns) const {
  std::vector<int32_t> ids;
  auto add = [&](std::string_view text) {
    const std::vector<int32_t> more = tokenizer_.encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  const bool habit = !template_ || template_->bos_by_habit();
  if (habit && tokenizer_.adds_bos() && tokenizer_.bos_id()) ids.push_back(*tokenizer_.bos_id());
  if (!template_) {
    add(turns.back().content);
    return ids;
  }
  for (const Piece& piece : template_->render(turns, true)) add(piece.text);
  return ids;
}

std::string PromptEncoder::decode(std::span<const int32_t> ids) const { return tokenizer_.decode(ids, true); }

std::vector<int64_t> PromptEncoder::stop_tokens(const HfConfig& config) const {
  std::vector<int64_t> stop = config.eos;
  if (template_)
    if (const auto id = tokenizer_.token_id(template_->end_of_turn())) stop.push_back(*id);
  return stop;
}

}  // namespace snug
