#include "data/shapes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/option_name.h"
#include "data/null_fields.h"
#include "data/record_fields.h"
#include "data/record_images.h"
#include "data/record_keys.h"

namespace snug {
namespace {

constexpr std::array<std::pair<DataFormat, std::string_view>, 7> kFormats = {{{DataFormat::Alpaca, "alpaca"},
                                                                              {DataFormat::ShareGpt, "sharegpt"},
                                                                              {DataFormat::Messages, "messages"},
                                                                              {DataFormat::Text, "text"},
                                                                              {DataFormat::Tokens, "tokens"},
                                                                              {DataFormat::Preference, "preference"},
                                                                              {DataFormat::Labelled, "labelled"}}};
// Columns may name these RecordFields: of records, and of the messages of a conversation.
constexpr std::array<std::string_view, 14> kFields = {"instruction",   "input",    "output", "system", "history",
                                                      "conversations", "messages", "tools",  "text",   "input_ids",
                                                      "labels",        "images",   "image",  "videos"};
constexpr std::array<std::string_view, 6> kMessageFields = {"from", "value", "role", "content", "weight", "train"};
// The same, of preferences.
constexpr std::array<std::string_view, 8> kAnswerFields = {"prompt",      "chosen", "rejected", "completion",
                                                           "completions", "scores", "label",    "margin"};

// Lists names that other programs give to the fields of a record.
constexpr std::pair<std::string_view, std::array<std::string_view, 7>> kOtherNames[] = {
    {"instruction", {"prompt", "question", "query", "problem", "user", "input", "request"}},
    {"output", {"response", "completion", "answer", "solution", "assistant", "target", "reply"}},
    {"text", {"content", "document", "body", "raw_content", "code", "story", "article"}},
    {"input_ids", {"tokens", "token_ids", "ids", "input_tokens", "", "", ""}},
    {"chosen", {"preferred", "winner", "response_chosen", "accepted", "positive", "better", "good"}},
    {"rejected", {"dispreferred", "loser", "response_rejected", "reject", "negative", "worse", "bad"}},
    {"completion", {"response", "output", "answer", "reply", "generation", "", ""}},
    {"label", {"labels", "is_desirable", "desirable", "thumbs_up", "feedback", "accepted", ""}}};

// Calls text(part) and field(name) for the parts of a prompt pattern in order.
template <class Text, class Field>
void walk_prompt(std::string_view pattern, Text&& text, Field&& field) {
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    const bool doubled = pattern.substr(i, 2) == std::string(2, c);
    if (c != '{' && c != '}') {
      const size_t end = std::min(pattern.find_first_of("{}", i), pattern.size());
      text(pattern.substr(i, end - i));
      i = end;
    } else if (doubled) {
      text(pattern.substr(i, 1));
      i += 2;
    } else {
      const size_t end = pattern.find_first_of("{}", i + 1);
      if (c == '}' || end == std::string_view::npos || pattern[end] != '}') {
        user_error("prompt: found a lone '{}' in \"{}\", expected {{field}}, or {{{{ and }}}} for braces", c, pattern);
      }
      field(std::string(pattern.substr(i + 1, end - i - 1)));
      i = end + 1;
    }
  }
}

// Returns whether the pattern has a field, under snug's name or the file's.
bool is_named(const RecordFields& fields, const std::vector<std::string>& named, const std::string& field) {
  return std::any_of(named.begin(), named.end(),
                     [&](const std::string& name) { return fields.key(name) == fields.key(field); });
}

// Refuses what would be taught beside a pattern, without the pattern's words, or in place of a missing text.
void refuse_beside_pattern(const RecordFields& fields, const std::vector<std::string>& named) {
  const JsonObject& record = fields.object();
  const auto is_said = [&](const std::string& name) {
    return fields.has(name) && !record.at(fields.key(name)).empty() && record.at(fields.key(name)) != "";
  };
  if (!is_named(fields, named, "history") && is_said("history"))
    record.fail(fields.key("history"),
                "none, or its name in " + option_name("prompt") + ", whose pattern is all that stands before a reply");
  if (fields.options().prompt_is_all && !is_named(fields, named, "system") && is_said("system"))
    record.fail(fields.key("system"), "none, or its name in " + option_name("prompt") + ", or a chat template (" +
                                          option_name("template") + ") that has a place for it");
  for (const std::string& name : named)
    if (name != "input" && name != "system" && !fields.has(name) && record.value().contains(fields.key(name)))
      refuse_null(record, fields.key(name));
}

Conversation read_alpaca(const RecordFields& fields) {
  Conversation out = read_question(fields);
  out.push_back({ChatRole::Assistant, fields.text("output")});
  return out;
}

bool is_conversation(const Json& value) {
  if (!value.is_array() || value.empty() || !value[0].is_object()) return false;
  return value[0].contains("role") || value[0].contains("from");
}

bool is_message(const Json& value) {
  const auto has = [&](const char* role, const char* content) {
    return value.contains(role) && value.contains(content);
  };
  return value.is_object() && (has("role", "content") || has("from", "value"));
}

constexpr std::array<std::string_view, 2> kPromptAndCompletion = {"prompt", "completion"};

// Refuses to teach messages as the text in which they are written.
void refuse_written_messages(const RecordFields& fields, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string key = fields.key(name);
    if (!is_in(kPromptAndCompletion, key) || !fields.has(name) || !fields.object().at(key).is_string()) continue;
    if (begins_as_messages(fields.text(name), false))
      fields.object().fail(key, "a text, or a list of messages written as JSON, which what Python prints is not");
  }
}

// Returns whether a record is a conversation in two lists, a prompt and its completion, as TRL has them.
bool is_prompt_and_completion(const RecordFields& fields) {
  const Json& record = fields.object().value();
  const auto is_list = [&](const char* key) { return record.contains(key) && is_conversation(record.at(key)); };
  return !fields.has("messages") && is_list("prompt") && is_list("completion");
}

// Returns the conversation of one list, or of a prompt, which carries no loss, and its completion.
Conversation read_conversation(const RecordFields& fields, const std::string& name, std::vector<std::string>& ignored) {
  Conversation out;
  add_system(fields, out);
  const auto add = [&](const std::string& list, bool is_prompt) {
    for (Message& message : read_messages(fields, list, ignored)) {
      if (is_prompt) message.loss = message.loss.value_or(false);
      out.push_back(std::move(message));
    }
  };
  if (name == "messages" && is_prompt_and_completion(fields)) {
    add("prompt", true);
    add("completion", false);
  } else {
    add(name, false);
  }
  return out;
}

// Refuses unknown lists with one value for each token, as they would say something of each.
void refuse_lists_beside_tokens(const RecordFields& fields, const std::vector<std::string>& unknown) {
  const size_t tokens = fields.has("input_ids") ? fields.object().at(fields.key("input_ids")).size() : 0;
  for (const std::string& key : unknown) {
    const Json& value = fields.object().at(key);
    if (tokens > 1 && value.is_array() && value.size() == tokens) {
      fields.object().fail(key,
                           "no list of a value a token under this name: 'loss_mask' says which tokens carry loss, "
                           "'position_ids' where documents begin");
    }
  }
}

KeysOf keys_of(DataFormat format, const ShapeOptions& options) {
  switch (format) {
    case DataFormat::Alpaca:
      return options.prompt || options.columns.contains("input") ? KeysOf::NamedAlpaca : KeysOf::Alpaca;
    case DataFormat::ShareGpt:
    case DataFormat::Messages:
      return KeysOf::Conversation;
    case DataFormat::Text:
      return KeysOf::Text;
    case DataFormat::Preference:
    case DataFormat::Labelled:
      return KeysOf::Answers;
    case DataFormat::Tokens:
      break;
  }
  return KeysOf::Tokens;
}

// Returns the fields of a record that a shape reads.
std::vector<std::string> fields_of(DataFormat format, const RecordFields& record) {
  const ShapeOptions& options = record.options();
  switch (format) {
    case DataFormat::Alpaca: {
      std::vector<std::string> fields = prompt_fields(options);
      if (!options.prompt) fields = {"instruction", "input"};
      fields.insert(fields.end(), {"output", "system", "history", "tools", "weight", "images", "image", "videos"});
      return fields;
    }
    case DataFormat::ShareGpt:
      return {"conversations", "system", "tools", "weight", "images", "image", "videos"};
    case DataFormat::Messages:
      if (is_prompt_and_completion(record))
        return {"prompt", "completion", "system", "tools", "weight", "images", "image", "videos"};
      return {"messages", "system", "tools", "weight", "images", "image", "videos"};
    case DataFormat::Text:
      return {"text", "weight"};
    case DataFormat::Preference:
    case DataFormat::Labelled:
      return fields_of_answers(record, format);
    case DataFormat::Tokens:
      break;
  }
  return {"input_ids",       "labels", "attention_mask", "loss_mask",   "completion_mask",
          "assistant_masks", "weight", "token_type_ids", "position_ids"};
}

std::optional<DataFormat> shape_of(const RecordFields& fields) {
  if (fields.options().samples != Samples::Replies) {
    if (has_answers(fields, DataFormat::Preference)) return DataFormat::Preference;
    if (has_answers(fields, DataFormat::Labelled)) return DataFormat::Labelled;
    return {};
  }
  if (fields.has("input_ids")) return DataFormat::Tokens;
  if (fields.has("conversations")) return DataFormat::ShareGpt;
  if (fields.has("messages") || is_prompt_and_completion(fields)) return DataFormat::Messages;
  if (fields.has(fields.options().prompt ? "output" : "instruction")) return DataFormat::Alpaca;
  if (fields.has("text")) return DataFormat::Text;
  return {};
}

// Returns "output=response", as --columns takes it, if the record has such a field; empty otherwise.
std::string column_for(std::string_view name, const JsonObject& record) {
  if (name == "messages" || name == "conversations") {
    for (const auto& [key, value] : record.value().items()) {
      if (is_conversation(value)) return fmt::format("{}={}", name, key);
    }
  }
  for (const auto& [ours, others] : kOtherNames) {
    if (ours != name) continue;
    for (const auto& [key, value] : record.value().items()) {
      const auto names_it = [name = std::string_view(key)](std::string_view other) {
        return !other.empty() && same_key(name, other);
      };
      if (value.is_null()) continue;
      if (names_it(name) || std::any_of(others.begin(), others.end(), names_it)) {
        return fmt::format("{}={}", name, key);
      }
    }
  }
  return "";
}

// Returns "--columns chosen=A,rejected=B names them" if a record has such fields.
std::string advice_on(const JsonObject& record, std::string_view a, std::string_view b) {
  const std::string first = column_for(a, record), second = column_for(b, record);
  return first.empty() || second.empty() ? ""
                                         : fmt::format("{} {},{} names them", option_name("columns"), first, second);
}

// Refuses a record that has none of what an objective on preferences learns from.
[[noreturn]] void refuse_no_answers(const RecordFields& fields) {
  const JsonObject& record = fields.object();
  for (const char* name : {"chosen", "rejected", "completion", "label"})
    if (record.value().contains(fields.key(name)) && !fields.has(name)) refuse_null(record, fields.key(name));
  const bool judged = fields.options().samples == Samples::Judged;
  std::string help = judged ? advice_on(record, "completion", "label") : advice_on(record, "chosen", "rejected");
  if (help.empty()) {
    help = !judged && has_answers(fields, DataFormat::Labelled)
               ? option_name("objective") + " kto learns from replies with a label"
               : option_name("objective") + " sft learns from replies of which nothing is said, and " +
                     option_name("columns") + " names other fields";
  }
  user_error("{}: found the keys {}, expected {}; {}", fields.place(), names_of_keys(record.value()),
             judged
                 ? "a prompt, its \"completion\" and a \"label\" (true or false), a conversation with \"label\" or "
                   "\"kto_tag\", or a pair of replies under \"chosen\" and \"rejected\""
                 : "a pair of replies to one prompt, under \"chosen\" and \"rejected\", or \"completions\" and their "
                   "\"scores\"",
             help);
}

// Returns what may help to read a record of no shape.
std::string advice(const JsonObject& record) {
  const std::string instruction = column_for("instruction", record), output = column_for("output", record);
  if (!instruction.empty() && !output.empty())
    return fmt::format("{} {},{} names them", option_name("columns"), instruction, output);
  for (const char* name : {"messages", "text", "input_ids"}) {
    const std::string column = column_for(name, record);
    if (!column.empty()) return fmt::format("{} {} names it", option_name("columns"), column);
  }
  return fmt::format("name the fields with {0}, such as {0} {1},{2}", option_name("columns"),
                     instruction.empty() ? "instruction=KEY" : instruction, output.empty() ? "output=KEY" : output);
}

}  // namespace

DataFormat data_format_from_name(std::string_view name) {
  for (const auto& [format, spelt] : kFormats) {
    if (spelt == name) return format;
  }
  user_error("data_format: found '{}', expected alpaca, sharegpt, messages, text, tokens, preference or labelled",
             name);
}

Samples samples_of(ObjectiveKind kind) {
  switch (kind) {
    case ObjectiveKind::Sft:
    case ObjectiveKind::Distill:
      return Samples::Replies;
    case ObjectiveKind::Kto:
      return Samples::Judged;
    case ObjectiveKind::Reward:
      return Samples::PairsWithMargins;
    case ObjectiveKind::Dpo:
    case ObjectiveKind::Orpo:
    case ObjectiveKind::SimPo:
      break;
  }
  return Samples::Pairs;
}

std::string_view name(DataFormat format) {
  for (const auto& [known, spelt] : kFormats) {
    if (known == format) return spelt;
  }
  return "";
}

ChatRole role_from_name(std::string_view name) {
  if (name == "system") return ChatRole::System;
  if (name == "user") return ChatRole::User;
  if (name == "assistant") return ChatRole::Assistant;
  if (name == "tool") return ChatRole::Tool;
  if (name == "developer") return ChatRole::Developer;
  user_error("roles: found '{}', expected system, user, assistant, tool or developer", name);
}

void validate(const ShapeOptions& options) {
  const std::vector<std::string> in_prompt = prompt_fields(options);
  for (const auto& [ours, theirs] : options.columns) {
    if (is_in(kFields, ours) || is_in(kMessageFields, ours) || is_in(in_prompt, ours)) continue;
    const bool answers = options.samples != Samples::Replies;
    if (is_in(kAnswerFields, ours)) {
      if (answers) continue;
      user_error(
          "columns: found '{}: {}', which is a field of preferences; {} dpo, orpo, simpo, kto or reward learns from "
          "them; replies that are learnt as they stand are instruction and output",
          ours, theirs, option_name("objective"));
    }
    const std::string swapped =
        is_in(kFields, theirs) || is_in(kMessageFields, theirs)
            ? fmt::format("; {} {}={} takes the data's '{}' for {}", option_name("columns"), theirs, ours, ours, theirs)
            : "";
    user_error("columns: found '{}: {}', expected one of {}, {}{}{} before the colon{}", ours, theirs,
               fmt::join(kFields, ", "), fmt::join(kMessageFields, ", "), answers ? ", " : "",
               answers ? fmt::format("{}", fmt::join(kAnswerFields, ", ")) : "", swapped);
  }
}

std::string names_of_keys(const Json& record) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items()) {
    if (keys.size() < 8) keys.push_back(shortened(key));
  }
  return keys.empty() ? "{}" : fmt::format("{}", fmt::join(keys, ", "));
}

std::vector<NamedField> named_fields(const ShapeOptions& options) {
  std::vector<NamedField> named;
  for (const auto& [ours, theirs] : options.columns) named.push_back({theirs, "columns"});
  for (const std::string& name : prompt_fields(options)) {
    if (!options.columns.contains(name)) named.push_back({name, "prompt"});
  }
  return named;
}

namespace {

// Returns whether the predicate holds for an object in one of the record's lists.
template <class Predicate>
bool in_lists(const Json& record, Predicate&& is_so) {
  return std::any_of(record.begin(), record.end(), [&](const Json& list) {
    return list.is_array() &&
           std::any_of(list.begin(), list.end(), [&](const Json& item) { return item.is_object() && is_so(item); });
  });
}

}  // namespace

bool occurs(const NamedField& named, const Json& record) {
  return record.contains(named.field) || in_lists(record, [&](const Json& item) { return item.contains(named.field); });
}

bool has_role(const std::string& role, const ShapeOptions& options, const Json& record) {
  for (const char* name : {"role", "from"}) {
    const auto column = options.columns.find(name);
    const std::string key = column == options.columns.end() ? name : column->second;
    const auto is_role = [&](const Json& item) { return item.contains(key) && item.at(key) == role; };
    if (in_lists(record, is_role)) return true;
  }
  return false;
}

bool has_in_messages(const std::string& key, const Json& record) {
  return in_lists(record, [&](const Json& item) { return item.contains(key) && !item.at(key).is_null(); });
}

std::vector<std::string> prompt_fields(const ShapeOptions& options) {
  std::vector<std::string> names;
  if (options.prompt) {
    walk_prompt(
        *options.prompt, [](std::string_view) {}, [&](std::string name) { names.push_back(std::move(name)); });
  }
  return names;
}

Conversation read_question(const RecordFields& fields, const std::string& name) {
  Conversation out;
  std::vector<std::string> named;
  if (name.empty()) named = prompt_fields(fields.options());
  const bool pattern = name.empty() && fields.options().prompt;
  if (pattern) refuse_beside_pattern(fields, named);
  if (!is_named(fields, named, "system")) add_system(fields, out);
  if (fields.has("history") && !is_named(fields, named, "history")) {
    const Json& history = fields.list("history");
    for (const Json& turn : history) {
      if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
        fields.object().fail(fields.key("history"), "a list of pairs [user, assistant] of strings");
      }
      out.push_back({ChatRole::User, turn[0]});
      out.push_back({ChatRole::Assistant, turn[1]});
    }
  }
  std::string prompt;
  if (pattern) {
    walk_prompt(
        *fields.options().prompt, [&](std::string_view text) { prompt += text; },
        [&](const std::string& field) { prompt += fields.text_or_nothing(field); });
  } else if (!name.empty()) {
    prompt = fields.text(name);
  } else {
    prompt = fields.text("instruction");
    const std::string input = fields.text_or_nothing("input");
    if (!prompt.empty() && !input.empty()) prompt += '\n';
    prompt += input;
  }
  out.push_back({ChatRole::User, std::move(prompt)});
  return out;
}

bool begins_as_messages(std::string_view text, bool or_message) {
  const auto take = [&](std::string_view word) {
    text.remove_prefix(white_before(text));
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  if ((!take("[") && !or_message) || !take("{")) return false;
  return (take("'") || take("\"")) && (take("role") || take("from") || take("content") || take("value")) &&
         (take("'") || take("\"")) && take(":");
}

std::string RecordFields::missing(const std::string& name) const {
  const std::optional<DataFormat> shape = shape_of(*this);
  if (shape && options_.samples == Samples::Replies && fields_of(*shape, *this).front() != name && name != "output") {
    user_error(
        "{}: key '{}' is missing, which the file's first record has or {} asks for; found the keys of '{}': expected "
        "one shape a file",
        place_, key(name), option_name("data_format"), snug::name(*shape));
  }
  if (record_.value().contains(key(name))) refuse_null(record_, key(name));
  const std::string column = column_for(name, record_);
  user_error("{}: key '{}' is missing, found the keys {}; {} {} names it", place_, key(name),
             names_of_keys(record_.value()), option_name("columns"), column.empty() ? name + "=FIELD" : column);
}

bool read_flag(const JsonObject& object, std::string_view key, std::string_view expected) {
  const Json& value = object.at(key);
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number() && (value == 0 || value == 1)) return value == 1;
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  for (const char* yes : {"1", "1.0", "true", "True"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"0", "0.0", "false", "False"}) {
    if (text == no) return false;
  }
  object.fail(key, expected);
}

float read_weight(const JsonObject& object, std::string_view key) {
  constexpr double kMost = 1e6;
  const Json& value = object.at(key);
  double weight = NAN;
  if (value.is_boolean()) weight = value.get<bool>() ? 1 : 0;
  if (value.is_number()) weight = value.get<double>();
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    char* end = nullptr;
    weight = std::strtod(text.c_str(), &end);
    if (text.empty() || end != text.c_str() + text.size()) weight = NAN;
    if (same_key(text, "true")) weight = 1;
    if (same_key(text, "false")) weight = 0;
  }
  if (!(std::abs(weight) <= kMost)) object.fail(key, "a number from -1e6 to 1e6: its tokens' loss is multiplied by it");
  const auto narrow = static_cast<float>(weight);
  return narrow == 0 ? 0.0f : narrow;  // no loss, whatever the sign
}

void read_written_messages(Json& record, const ShapeOptions& options) {
  const std::string place;
  const RecordFields fields(record, options, place);
  std::vector<std::pair<std::string, bool>> keys;  // and whether they may hold one message
  for (const std::string_view name : kPromptAndCompletion)
    keys.emplace_back(options.samples == Samples::Replies ? std::string(name) : fields.key(std::string(name)),
                      options.samples != Samples::Replies && name == "completion");
  if (options.samples != Samples::Replies)
    for (const auto& pair : kReplyFields)
      for (const std::string_view name : pair) keys.emplace_back(fields.key(std::string(name)), true);
  for (const auto& [key, or_message] : keys) {
    const auto found = record.find(key);
    const auto* text = found == record.end() ? nullptr : found->get_ptr<const std::string*>();
    if (!text || !begins_as_messages(*text, or_message)) continue;
    try {
      Json value = parse_json(*text, key);
      if (is_conversation(value) || (or_message && is_message(value))) *found = std::move(value);
    } catch (const UserError&) {
      continue;  // a text, which is refused when it is read
    }
  }
}

DataFormat detect_format(const Json& record, const ShapeOptions& options, const std::string& place) {
  const RecordFields fields(record, options, place);
  const auto shape = shape_of(fields);
  if (shape && (shape != DataFormat::Labelled || options.samples == Samples::Judged)) return *shape;
  if (options.samples != Samples::Replies) refuse_no_answers(fields);
  std::vector<std::string> ignored;
  check_keys(
      fields.object(), KeysOf::Text, [](std::string_view) { return false; }, ignored);
  for (const char* name : {options.prompt ? "output" : "instruction", "conversations", "messages", "text", "input_ids"})
    if (record.contains(fields.key(name))) refuse_null(fields.object(), fields.key(name));
  user_error(
      "{}: found the keys {}, expected one of \"instruction\", \"conversations\", \"messages\", \"text\", "
      "\"input_ids\"; {}",
      place, names_of_keys(record), advice(fields.object()));
}

Example read_example(const Json& record, DataFormat format, const ShapeOptions& options, const std::string& place,
                     std::string_view text) {
  const RecordFields fields(record, options, place, text);
  const bool answers = format == DataFormat::Preference || format == DataFormat::Labelled;
  if (answers && !has_answers(fields, format)) refuse_no_answers(fields);
  const std::vector<std::string> read = fields_of(format, fields);
  Example example;
  refuse_images(fields, format);
  check_keys(
      fields.object(), keys_of(format, options),
      [&](std::string_view key) {
        const auto is = [&](const std::string& name) { return fields.key(name) == key; };
        if (std::any_of(read.begin(), read.end(), is)) return true;
        // A key in other letters would be passed over, and the field be missing.
        for (const std::string& name : read)
          if (same_key(fields.key(name), key) && !fields.has(name))
            fields.object().fail(
                key, fmt::format("'{}'; {} {}={} names it", fields.key(name), option_name("columns"), name, key));
        return false;
      },
      example.ignored);
  const std::string weight = fields.key("weight");
  if (fields.has("weight")) example.weight = read_weight(fields.object(), weight);
  if (options.samples != Samples::Replies && example.weight != 0 && example.weight != 1)
    fields.object().fail(weight, "0 or 1: what is judged has no other weights");
  if (format != DataFormat::Text && format != DataFormat::Tokens && is_in(read, "tools"))
    example.tools = read_tools(fields);
  if (format == DataFormat::Alpaca || format == DataFormat::Text) refuse_written_messages(fields, read);
  switch (format) {
    case DataFormat::Alpaca:
      example.content = read_alpaca(fields);
      break;
    case DataFormat::ShareGpt:
      example.content = read_conversation(fields, "conversations", example.ignored);
      break;
    case DataFormat::Messages:
      example.content = read_conversation(fields, "messages", example.ignored);
      break;
    case DataFormat::Text:
      example.content = Document{fields.text("text")};
      break;
    case DataFormat::Tokens:
      refuse_lists_beside_tokens(fields, example.ignored);
      example.content = read_tokens(fields);
      break;
    case DataFormat::Preference:
    case DataFormat::Labelled:
      example.content = read_answers(fields, format, example.ignored);
      break;
  }
  if (auto* conversation = std::get_if<Conversation>(&example.content); conversation && options.markup)
    example.images = place_images(fields, *conversation);
  return example;
}

}  // namespace snug
