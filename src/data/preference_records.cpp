// Reads preferences: which of two replies to a prompt is better, or whether one is good.
//
//   preference  two replies, under chosen and rejected, chosen_response and rejected_response, or chosen_messages and
//               rejected_messages, and perhaps a margin; or completions, a list of replies, and scores, a number for
//               each: the best (the first of equals) against the worst, or, where samples have margins, each against
//               all worse ones
//   labelled    a reply under completion, or output, and label or kto_tag; or a whole conversation and its label
//
// A reply is a text, a message or a list of messages, which may be the whole conversation. A prompt is the list under
// prompt, messages or conversations; instruction and input or the pattern of --prompt; or the text under prompt,
// question or input, with system and history. Texts of replies are raw, made tokens together with their prompt, if the
// prompt is the text under prompt alone, or missing; unless they are transcripts ("\n\nHuman: ... \n\nAssistant: ..."),
// which become turns.
//
// Token ids: chosen_input_ids and rejected_input_ids (or chosen_ids and rejected_ids), whole with chosen_labels and
// rejected_labels, or behind prompt_input_ids (or prompt_ids), or with what they begin with as the prompt; labelled:
// input_ids with labels, or completion_input_ids (or completion_ids) in the same ways.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/option_name.h"
#include "data/preferences.h"
#include "data/record_fields.h"
#include "data/records.h"

namespace snug {
namespace {

constexpr size_t kMostCompletions = 64;  // whose pairs all become samples

// Names the fields of a reply in token ids; the last two may be missing.
struct TokenFields {
  std::string_view ids, labels, mask;
};
constexpr std::array<std::array<TokenFields, 2>, 2> kTokenPairs = {
    {{{{"chosen_input_ids", "chosen_labels", "chosen_attention_mask"},
       {"rejected_input_ids", "rejected_labels", "rejected_attention_mask"}}},
     {{{"chosen_ids", "chosen_labels", "chosen_attention_mask"},
       {"rejected_ids", "rejected_labels", "rejected_attention_mask"}}}}};
constexpr std::array<TokenFields, 3> kTokenReplies = {
    {{"completion_input_ids", "completion_labels", "completion_attention_mask"},
     {"completion_ids", "completion_labels", "completion_attention_mask"},
     {"input_ids", "labels", "attention_mask"}}};
constexpr std::array<TokenFields, 2> kTokenPrompts = {
    {{"prompt_input_ids", "", "prompt_attention_mask"}, {"prompt_ids", "", "prompt_attention_mask"}}};

// Names what token ids were made of, which some programs leave beside them.
constexpr std::array<std::string_view, 4> kTextsOfTokens = {"prompt", "chosen", "rejected", "completion"};

// Refers to a field, or to an element of one.
struct Reply {
  std::string name;
  std::optional<size_t> element = {};
};

// Says where a record has what it says.
struct Layout {
  enum class Of { Texts, Turns, Tokens } of = Of::Texts;
  std::vector<Reply> replies;
  bool scored = false;  // the replies are the elements of completions
  bool asked = false;   // the prompt is the pattern, or instruction and input
  std::string prompt;   // else the field of the prompt; empty: none
  bool listed = false;  // that field is a list of messages
  std::string label;    // the field of the label
  std::vector<TokenFields> tokens;
  std::vector<std::string> read;
};

const Json& value_of(const RecordFields& fields, const Reply& reply) {
  const Json& field = fields.object().at(fields.key(reply.name));
  return reply.element ? field.at(*reply.element) : field;
}

std::string place_of(const RecordFields& fields, const Reply& reply) {
  const std::string key = fields.key(reply.name);
  return reply.element ? fmt::format("{}[{}]", key, *reply.element) : key;
}

bool is_list(const RecordFields& fields, const std::string& name) {
  return fields.has(name) && fields.object().at(fields.key(name)).is_array();
}

std::optional<std::array<std::string, 2>> pair_fields(const RecordFields& fields) {
  for (const auto& [chosen, rejected] : kReplyFields) {
    const std::array<std::string, 2> names = {std::string(chosen), std::string(rejected)};
    if (fields.has(names[0]) || fields.has(names[1])) return names;
  }
  return std::nullopt;
}

std::string label_field(const RecordFields& fields) { return fields.has("label") ? "label" : "kto_tag"; }

// Returns the fields of replies in token ids; empty if the record has none.
std::vector<TokenFields> token_fields(const RecordFields& fields, DataFormat format) {
  if (format == DataFormat::Preference) {
    for (const auto& pair : kTokenPairs)
      if (fields.has(std::string(pair[0].ids)) || fields.has(std::string(pair[1].ids)))
        return {pair.begin(), pair.end()};
    return {};
  }
  for (const TokenFields& reply : kTokenReplies)
    if (fields.has(std::string(reply.ids))) return {reply};
  return {};
}

bool has_text(const RecordFields& fields, const char* name) {
  if (!fields.has(name)) return false;
  const Json& value = fields.object().at(fields.key(name));
  return !value.empty() && value != "";
}

void find_prompt(const RecordFields& fields, Layout& layout) {
  layout.asked = fields.options().prompt.has_value();
  if (layout.asked) return;
  for (const char* name : {"prompt", "messages", "conversations"}) {
    const bool is_reply = !layout.replies.empty() && layout.replies[0].name == name;
    if (!is_reply && layout.prompt.empty() && is_list(fields, name)) layout.prompt = name, layout.listed = true;
  }
  if (layout.listed) return;
  layout.asked = fields.has("instruction");
  for (const char* name : {"prompt", "question", "input"})
    if (!layout.asked && layout.prompt.empty() && fields.has(name)) layout.prompt = name;
}

// Says which fields are read; others are judged by their keys.
void list_fields(const RecordFields& fields, Layout& layout) {
  std::vector<std::string>& read = layout.read;
  for (const Reply& reply : layout.replies) read.push_back(reply.name);
  if (layout.scored) read.insert(read.end(), {"completions", "scores"});
  read.insert(read.end(), {"margin", "weight"});
  if (!layout.label.empty()) read.push_back(layout.label);
  for (const TokenFields& reply : layout.tokens)
    for (const std::string_view name : {reply.ids, reply.labels, reply.mask}) read.emplace_back(name);
  if (layout.of == Layout::Of::Tokens)
    for (const TokenFields& prompt : kTokenPrompts)
      read.insert(read.end(), {std::string(prompt.ids), std::string(prompt.mask)});
  if (layout.of == Layout::Of::Tokens) read.insert(read.end(), kTextsOfTokens.begin(), kTextsOfTokens.end());
  if (layout.of != Layout::Of::Turns) {
    if (!layout.prompt.empty()) read.push_back(layout.prompt);
    return;
  }
  read.insert(read.end(), {"system", "tools"});
  if (!layout.listed) read.push_back("history");
  if (layout.asked && fields.options().prompt) {
    const std::vector<std::string> named = prompt_fields(fields.options());
    read.insert(read.end(), named.begin(), named.end());
  } else if (layout.asked) {
    read.insert(read.end(), {"instruction", "input"});
  } else if (!layout.prompt.empty()) {
    read.push_back(layout.prompt);
  }
}

// Returns whether the prompt is a transcript.
bool asks_by_transcript(const RecordFields& fields, const Layout& layout) {
  if (layout.asked || layout.listed || layout.prompt.empty()) return false;
  const auto* text = fields.object().at(fields.key(layout.prompt)).get_ptr<const std::string*>();
  return text && begins_as_transcript(*text);
}

// Returns whether all replies are texts that are no turns of a conversation.
bool are_raw(const RecordFields& fields, const Layout& layout) {
  if (layout.asked || layout.listed || (!layout.prompt.empty() && layout.prompt != "prompt")) return false;
  for (const char* name : {"system", "history", "tools"})
    if (has_text(fields, name)) return false;
  const auto is_text = [&](const Reply& reply) {
    const bool usual =
        reply.name == "chosen" || reply.name == "rejected" || reply.name == "completion" || reply.name == "completions";
    return usual && (!fields.has(reply.name) || value_of(fields, reply).is_string());
  };
  if (!std::all_of(layout.replies.begin(), layout.replies.end(), is_text)) return false;
  const auto is_transcript = [&](const Json& value) {
    return value.is_string() && begins_as_transcript(value.get_ref<const std::string&>());
  };
  if (!layout.prompt.empty()) return !asks_by_transcript(fields, layout);
  return layout.replies.empty() || !fields.has(layout.replies[0].name) ||
         !is_transcript(value_of(fields, layout.replies[0]));
}

Layout layout_of(const RecordFields& fields, DataFormat format) {
  Layout layout;
  if (format == DataFormat::Labelled) layout.label = label_field(fields);
  layout.tokens = token_fields(fields, format);
  if (!layout.tokens.empty()) {
    layout.of = Layout::Of::Tokens;
    list_fields(fields, layout);
    return layout;
  }
  if (format == DataFormat::Labelled) {
    for (const char* name : {"completion", "output", "messages", "conversations"})
      if (layout.replies.empty() && fields.has(name)) layout.replies.push_back({name});
  } else if (const auto pair = pair_fields(fields)) {
    layout.replies = {{(*pair)[0]}, {(*pair)[1]}};
  } else {
    layout.scored = true;
    if (is_list(fields, "completions"))
      for (size_t i = 0; i < fields.list("completions").size(); ++i) layout.replies.push_back({"completions", i});
  }
  find_prompt(fields, layout);
  layout.of = are_raw(fields, layout) ? Layout::Of::Texts : Layout::Of::Turns;
  list_fields(fields, layout);
  return layout;
}

// ---- Choices --------------------------------------------------------------------------------------------------------

// Returns a number, which tables may have as a text.
double number_of(const RecordFields& fields, const Json& value, const std::string& place) {
  double number = NAN;
  if (value.is_number()) number = value.get<double>();
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    char* end = nullptr;
    number = std::strtod(text.c_str(), &end);
    if (text.empty() || end != text.c_str() + text.size()) number = NAN;
  }
  if (!(std::abs(number) <= 1e30))
    user_error("{}, key '{}': found {}, expected a number from -1e30 to 1e30", fields.place(), place, shortened(value));
  return number;
}

std::vector<double> scores_of(const RecordFields& fields, size_t replies) {
  const Json& list = fields.list("scores");
  const std::string key = fields.key("scores");
  if (list.size() != replies)
    fields.object().fail(key, fmt::format("{} numbers, as '{}' has replies", replies, fields.key("completions")));
  std::vector<double> scores;
  for (const Json& score : list) scores.push_back(number_of(fields, score, fmt::format("{}[{}]", key, scores.size())));
  return scores;
}

// Returns what a sample learns of two replies, by their numbers.
void choose(Samples samples, size_t chosen, size_t rejected, double margin, Answers& out) {
  if (samples == Samples::Judged) {
    out.choices.push_back({chosen, {}, 1.0f});
    out.choices.push_back({rejected, {}, 0.0f});
  } else {
    std::optional<float> value;
    if (samples == Samples::PairsWithMargins) value = static_cast<float>(margin);
    out.choices.push_back({chosen, rejected, value});
  }
}

// Chooses among replies by their scores, and leaves those in the layout that are chosen or rejected.
void choose_by_scores(const RecordFields& fields, Layout& layout, Answers& out) {
  const Json& list = fields.list("completions");
  if (list.empty()) fields.object().fail(fields.key("completions"), "at least one reply");
  const std::vector<double> scores = scores_of(fields, list.size());
  const Samples samples = fields.options().samples;
  if (samples != Samples::PairsWithMargins) {
    const auto best = static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
    const auto worst = static_cast<size_t>(std::min_element(scores.begin(), scores.end()) - scores.begin());
    layout.replies = {{"completions", best}, {"completions", worst}};
    if (scores[best] > scores[worst]) choose(samples, 0, 1, 0, out);
  } else {
    uint64_t bytes = 0;
    for (const Json& reply : list) bytes += reply.dump(-1, ' ', false, Json::error_handler_t::ignore).size();
    if (list.size() > kMostCompletions || bytes * list.size() > kMaxRecordBytes)
      fields.object().fail(fields.key("completions"),
                           fmt::format("at most {} replies of {} MiB together, times their number: each pair of them "
                                       "becomes a sample",
                                       kMostCompletions, kMaxRecordBytes >> 20));
    for (size_t i = 0; i < scores.size(); ++i)
      for (size_t j = i + 1; j < scores.size(); ++j)
        if (scores[i] != scores[j])
          choose(samples, scores[i] > scores[j] ? i : j, scores[i] > scores[j] ? j : i, std::abs(scores[i] - scores[j]),
                 out);
  }
  if (out.choices.empty()) out.settled.push_back(Settled::EqualScores);
}

void choose(const RecordFields& fields, Layout& layout, Answers& out) {
  if (layout.scored) {
    choose_by_scores(fields, layout, out);
  } else if (layout.label.empty()) {
    const std::string margin = fields.key("margin");
    choose(fields.options().samples, 0, 1,
           fields.has("margin") ? number_of(fields, fields.object().at(margin), margin) : 0, out);
  } else {
    const std::string key = fields.key(layout.label);
    const bool good = read_flag(fields.object(), key, "true or false: whether the reply is good");
    out.choices.push_back({0, {}, good ? 1.0f : 0.0f});
  }
}

// ---- Replies --------------------------------------------------------------------------------------------------------

std::string raw_text(const RecordFields& fields, const Reply& reply) {
  const Json& value = value_of(fields, reply);
  const std::string place = place_of(fields, reply);
  if (!value.is_string())
    user_error("{}, key '{}': found {}, expected a text, as the other replies are", fields.place(), place,
               shortened(value));
  const std::string& text = value.get_ref<const std::string&>();
  if (begins_as_messages(text, false) || text.starts_with("{'role':") || text.starts_with("{'from':"))
    user_error("{}, key '{}': found {}, expected a text, or messages written as JSON, which what Python prints is not",
               fields.place(), place, shortened(value));
  return text;
}

Answers::Texts read_texts(const RecordFields& fields, const Layout& layout) {
  Answers::Texts out;
  if (!layout.prompt.empty()) out.prompt = raw_text(fields, {layout.prompt});
  for (const Reply& reply : layout.replies) out.replies.push_back(raw_text(fields, reply));
  return out;
}

// Returns what a value of the record says in turns: a transcript, what an assistant says, or messages.
Conversation read_turns(const RecordFields& fields, const Reply& reply, bool behind_transcript, Answers& out,
                        std::vector<std::string>& ignored) {
  if (!value_of(fields, reply).is_string()) return read_reply(fields, reply.name, reply.element, ignored);
  std::string text = raw_text(fields, reply);
  if (auto turns = turns_of_transcript(text)) {
    out.settled.push_back(Settled::Transcripts);
    return *turns;
  }
  return {{ChatRole::Assistant, behind_transcript ? std::string(stripped(text)) : std::move(text)}};
}

// Returns the turns before the replies.
Conversation read_prompt(const RecordFields& fields, const Layout& layout, Answers& out,
                         std::vector<std::string>& ignored) {
  Conversation turns;
  if (layout.asked) return read_question(fields);
  if (layout.prompt.empty()) {
    add_system(fields, turns);
    return turns;
  }
  if (layout.listed) {
    add_system(fields, turns);
    for (Message& message : read_messages(fields, layout.prompt, ignored)) turns.push_back(std::move(message));
    return turns;
  }
  turns = read_question(fields, layout.prompt);
  if (auto transcript = turns_of_transcript(turns.back().content)) {
    out.settled.push_back(Settled::Transcripts);
    turns.pop_back();
    // What asks for a reply is an empty one.
    if (transcript->back().role == ChatRole::Assistant && transcript->back().content.empty()) transcript->pop_back();
    for (Message& message : *transcript) turns.push_back(std::move(message));
  }
  return turns;
}

// Returns whether a reply is a whole conversation: behind a prompt it begins with an answer, and without one no
// question makes it a reply alone.
bool is_whole(const Conversation& reply, bool has_prompt) {
  if (has_prompt) return reply.front().role != ChatRole::Assistant && reply.front().role != ChatRole::Tool;
  return std::any_of(reply.begin(), reply.end(), [](const Message& one) { return one.role == ChatRole::User; });
}

// Puts the prompt before replies that are not whole conversations, and returns how many messages are the prompt's.
size_t put_prompt(const RecordFields& fields, const Layout& layout, std::vector<Conversation>& replies, Answers& out,
                  std::vector<std::string>& ignored) {
  const bool has_prompt = layout.asked || !layout.prompt.empty();
  const bool whole = is_whole(replies.front(), has_prompt);
  for (size_t i = 0; i < replies.size(); ++i) {
    if (is_whole(replies[i], has_prompt) == whole) continue;
    user_error("{}, key '{}': found {}, expected {}, as the other reply is", fields.place(),
               place_of(fields, layout.replies[i]), shortened(value_of(fields, layout.replies[i])),
               whole ? "a whole conversation" : "a reply");
  }
  if (!whole && !has_prompt) fields.missing("prompt");
  Conversation prompt = read_prompt(fields, layout, out, ignored);
  if (!whole && !prompt.empty() && prompt.back().role == ChatRole::Assistant)
    fields.object().fail(fields.key(layout.prompt), "a question at its end, not a reply");
  if (whole && has_prompt) {
    if (layout.asked && fields.options().prompt)
      fields.object().fail(
          fields.key(layout.replies[0].name),
          "replies: " + option_name("prompt") + " is what stands before them, and this is a whole conversation");
    const auto begins = [&](const Conversation& one) { return begins_with_messages(one, prompt); };
    const bool repeated = layout.listed && std::all_of(replies.begin(), replies.end(), begins);
    // A list under prompt that the conversations do not repeat, such as a system text, stands before them.
    if (repeated || !layout.listed || layout.prompt != "prompt") {
      if (!repeated) out.settled.push_back(Settled::PassedPrompt);
      prompt.clear();
      add_system(fields, prompt);
    }
  }
  if (whole && !has_prompt && replies.size() > 1) out.settled.push_back(Settled::CommonMessages);
  for (Conversation& reply : replies) reply.insert(reply.begin(), prompt.begin(), prompt.end());
  return whole ? 0 : prompt.size();
}

// Says which messages carry loss: those of assistants behind the first `before`.
void set_loss(const RecordFields& fields, const Reply& reply, size_t before, Conversation& turns, Answers& out) {
  for (size_t i = 0; i < turns.size(); ++i) {
    Message& message = turns[i];
    const bool teaches = i >= before && message.role == ChatRole::Assistant;
    if (teaches && message.loss == false)
      user_error(
          "{}, key '{}': found a message that carries no loss, expected one that does: replies are what is "
          "learnt from",
          fields.place(), place_of(fields, reply));
    if (message.weight != 1)
      user_error("{}, key '{}': found a message of weight {}, expected 0 or 1: what is judged has no other weights",
                 fields.place(), place_of(fields, reply), message.weight);
    if (!teaches && message.loss == true) out.settled.push_back(Settled::LossOfPrompt);
    message.loss = teaches;
  }
}

std::vector<Conversation> read_conversations(const RecordFields& fields, const Layout& layout, Answers& out,
                                             std::vector<std::string>& ignored) {
  std::vector<Conversation> replies;
  const bool transcript = asks_by_transcript(fields, layout);
  for (const Reply& reply : layout.replies) replies.push_back(read_turns(fields, reply, transcript, out, ignored));
  size_t before = put_prompt(fields, layout, replies, out, ignored);
  size_t least = SIZE_MAX;
  for (size_t i = 0; i < replies.size(); ++i) {
    least = std::min(least, replies[i].size() - 1);
    if (replies[i].back().role != ChatRole::Assistant)
      user_error("{}, key '{}': found {} at the end, expected an assistant's reply", fields.place(),
                 place_of(fields, layout.replies[i]), name_of(replies[i].back().role));
  }
  if (replies.size() == 1) {
    if (before == 0) before = least;
  } else {
    before = std::min(std::max(before, common_messages(replies)), least);
    const auto answers = [&](const Conversation& one) { return one[before].role == ChatRole::Assistant; };
    out.one_prompt = std::all_of(replies.begin(), replies.end(), answers);
    const auto is_last = [&](const Conversation& one) { return one.size() == before + 1; };
    if (!std::all_of(replies.begin(), replies.end(), is_last)) out.settled.push_back(Settled::PartEarly);
  }
  for (size_t i = 0; i < replies.size(); ++i) set_loss(fields, layout.replies[i], before, replies[i], out);
  return replies;
}

// Returns a prompt's token ids and those of the replies with their labels.
std::vector<TokenSample> read_token_replies(const RecordFields& fields, const Layout& layout, Answers& out,
                                            std::vector<std::string>& ignored) {
  for (const std::string_view name : kTextsOfTokens)
    if (fields.has(std::string(name))) ignored.push_back(fields.key(std::string(name)));
  std::vector<int32_t> prompt;
  for (const TokenFields& names : kTokenPrompts)
    if (prompt.empty() && fields.has(std::string(names.ids)))
      prompt = read_tokens(fields, std::string(names.ids), "", std::string(names.mask)).ids;
  std::vector<TokenSample> replies;
  bool labelled = false;
  for (const TokenFields& names : layout.tokens) {
    const std::string ids(names.ids);
    if (!fields.has(ids)) fields.missing(ids);
    const bool labels = fields.has(std::string(names.labels));
    if (!replies.empty() && labels != labelled)
      fields.object().fail(fields.key(ids), "labels beside both replies, or beside none");
    labelled = labels;
    replies.push_back(read_tokens(fields, ids, std::string(names.labels), std::string(names.mask)));
  }
  if (labelled) return replies;
  if (!prompt.empty()) {
    for (TokenSample& reply : replies) {
      reply.ids.insert(reply.ids.begin(), prompt.begin(), prompt.end());
      label_from(prompt.size(), reply);
    }
    return replies;
  }
  if (replies.size() == 1) fields.missing(std::string(layout.tokens[0].labels));
  out.settled.push_back(Settled::CommonTokens);
  const size_t common = common_tokens(replies);
  for (TokenSample& reply : replies) label_from(common, reply);
  return replies;
}

}  // namespace

bool has_answers(const RecordFields& fields, DataFormat format) {
  if (!token_fields(fields, format).empty() && format == DataFormat::Preference) return true;
  if (format == DataFormat::Labelled) return fields.has("label") || fields.has("kto_tag");
  return pair_fields(fields) || (fields.has("completions") && fields.has("scores"));
}

std::vector<std::string> fields_of_answers(const RecordFields& fields, DataFormat format) {
  return layout_of(fields, format).read;
}

Answers read_answers(const RecordFields& fields, DataFormat format, std::vector<std::string>& ignored) {
  Layout layout = layout_of(fields, format);
  for (const Reply& reply : layout.replies)
    if (!fields.has(reply.name)) fields.missing(reply.name);
  if (layout.replies.empty() && !layout.scored && layout.tokens.empty()) fields.missing("completion");
  Answers out;
  choose(fields, layout, out);
  if (layout.of == Layout::Of::Tokens) {
    out.replies = read_token_replies(fields, layout, out, ignored);
  } else if (layout.of == Layout::Of::Texts) {
    if (layout.prompt.empty() && format == DataFormat::Labelled) fields.missing("prompt");
    if (layout.prompt.empty()) out.settled.push_back(Settled::CommonTokens);
    out.replies = read_texts(fields, layout);
  } else {
    out.replies = read_conversations(fields, layout, out, ignored);
  }
  return out;
}

}  // namespace snug
