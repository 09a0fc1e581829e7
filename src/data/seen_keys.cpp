#include "data/seen_keys.h"

#include <algorithm>

#include "base/error.h"
#include "base/option_name.h"
#include "data/record_keys.h"

namespace snug {

void add_to(std::vector<bool>& all, const std::vector<bool>& more) {
  for (size_t i = 0; i < more.size(); ++i) all[i] = all[i] || more[i];
}

void SeenKeys::add(const Made& made) {
  for (const std::string& key : made.ignored) ++ignored_[key];
  add_to(occurs_, made.occurs);
  masks_ += made.has_mask;
  empty_replies_ += made.empty_replies;
  ended_again_ += made.ended_again;
  begun_again_ += made.begun_again;
  left_out_ += made.left_out;
  raw_ += made.raw;
  for (size_t i = 0; i < kSettled; ++i)
    settled_[i] += std::find(made.settled.begin(), made.settled.end(), static_cast<Settled>(i)) != made.settled.end();
}

void SeenKeys::say_of_keys(const std::string& path, const DataOptions& options) const {
  if (!options.note) return;
  for (size_t i = 0; i < named_.size(); ++i) {
    if (!occurs_[i])
      options.note(fmt::format("{}: no record has the field '{}', which {} names", path, named_[i].field,
                               option_name(named_[i].option)));
  }
  if (!ignored_.empty()) options.note(ignored_keys_text(path, ignored_));
  // Some programs mean by 'mask' what others mean by 'masked'.
  if (masks_ > 0) {
    options.note(fmt::format(
        "{}: {} messages with 'mask': where it is true a message carries loss; 'masked' is the other way round", path,
        masks_ == 1 ? "1 record has" : fmt::format("{} records have", masks_)));
  }
}

void SeenKeys::say_of_ends(const std::string& path, const DataOptions& options) const {
  if (!options.note) return;
  if (empty_replies_ > 0) {
    options.note(fmt::format("{}: {} empty: to end at once is what {} taught", path,
                             empty_replies_ == 1 ? "1 reply is" : fmt::format("{} replies are", empty_replies_),
                             empty_replies_ == 1 ? "is" : "they are"));
  }
  if (begun_again_ > 0) {
    options.note(fmt::format("{}: {} with BOS more than once: one is left", path,
                             begun_again_ == 1 ? "1 record begins" : fmt::format("{} records begin", begun_again_)));
  }
  if (ended_again_ > 0) {
    options.note(fmt::format(
        "{}: {} more than one end, or the tokenizer's in place of the template's: each is left with the one end that "
        "is put behind it",
        path,
        ended_again_ == 1 ? "1 record has a text with" : fmt::format("{} records have texts with", ended_again_)));
  }
  if (left_out_.thoughts > 0) {
    const std::string how =
        left_out_.last_thoughts > 0 ? fmt::format("{} of them in the last turn", left_out_.last_thoughts)
        : options.thinking == Thinking::Last
            ? "as of earlier turns"
            : "as of earlier turns: " + option_name("thinking") + " last makes each turn the last one of a sample";
    options.note(fmt::format("{}: the chat template leaves out what {} thought, {}", path,
                             left_out_.thoughts == 1 ? "1 reply" : fmt::format("{} replies", left_out_.thoughts), how));
  }
  if (left_out_.unasked > 0) {
    const std::optional<ChatTemplate>& chat = options.prompt_format.chat;
    options.note(fmt::format(
        "{}: the chat template asks for replies by {}, which it does not write whole before the last reply of {}: they "
        "teach to reply without it",
        path, Json(chat ? chat->prompt() : "").dump(-1, ' ', false, Json::error_handler_t::replace),
        left_out_.unasked == 1 ? "1 conversation" : fmt::format("{} conversations", left_out_.unasked)));
  }
  if (left_out_.texts > 0)
    options.note(fmt::format("{}: the chat template leaves out {} that carry no loss, such as system texts", path,
                             left_out_.texts == 1 ? "1 message" : fmt::format("{} messages", left_out_.texts)));
}

void SeenKeys::say_of_answers(const std::string& path, const DataOptions& options) const {
  constexpr std::array<std::string_view, kSettled> kTexts = {
      "transcripts of Human and Assistant became turns",
      "there is no prompt: the tokens with which both replies begin are taken for it, and carry no loss",
      "both replies are whole conversations: the messages with which both begin are the prompt",
      "replies are whole conversations, and the prompt beside them is passed over",
      "conversations part before their last reply: every reply behind what they share carries loss",
      "all scores are equal: there is nothing to learn",
      "both replies are equal: left out",
      "messages of the prompt say that they carry loss: in preferences only replies do",
      "a token holds the end of the prompt and the beginning of a reply: loss begins with it"};
  if (!options.note) return;
  const auto count = [](int64_t n) { return fmt::format("{} record{}", n, n == 1 ? "" : "s"); };
  for (size_t i = 0; i < kSettled; ++i)
    if (settled_[i] > 0) options.note(fmt::format("{}: {} ({})", path, kTexts[i], count(settled_[i])));
  const std::optional<ChatTemplate>& chat = options.prompt_format.chat;
  if (raw_ > 0 && chat && !chat->bos_by_habit())
    options.note(
        fmt::format("{}: prompts and replies are texts, taken as they are, without the chat template ({}); {} "
                    "instruction=prompt makes turns of them",
                    path, count(raw_), option_name("columns")));
}

}  // namespace snug
