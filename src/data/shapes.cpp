#include "data/shapes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace snug {
namespace {

constexpr std::array<std::pair<DataFormat, std::string_view>, 5> kFormats = {{{DataFormat::Alpaca, "alpaca"},
                                                                              {DataFormat::ShareGpt, "sharegpt"},
                                                                              {DataFormat::Messages, "messages"},
                                                                              {DataFormat::Text, "text"},
                                                                              {DataFormat::Tokens, "tokens"}}};
// Fields that snug looks for.
constexpr std::array<std::string_view, 14> kFields = {"instruction",   "input", "output",    "system",   "history",
                                                      "conversations", "from",  "value",     "messages", "role",
                                                      "content",       "text",  "input_ids", "labels"};

// The fields of one record under the names that snug looks for.
class Fields {
 public:
  Fields(const Json& record, const ShapeOptions& options, const std::string& place)
      : record_(record, place), options_(options), place_(place) {}

  std::string key(const std::string& name) const {
    const auto found = options_.columns.find(name);
    return found == options_.columns.end() ? name : found->second;
  }
  bool has(const std::string& name) const { return record_.has(key(name)); }
  std::string text(const std::string& name) const { return record_.string(key(name)); }
  std::string text_or_nothing(const std::string& name) const { return record_.string(key(name), ""); }
  const Json& list(const std::string& name) const {
    const Json& found = record_.at(key(name));
    if (!found.is_array()) record_.fail(key(name), "a list");
    return found;
  }
  // The objects of a list, each with its place: "messages[3]".
  JsonObject item(const std::string& name, size_t i) const {
    return JsonObject(list(name)[i], place_, fmt::format("{}[{}]", key(name), i));
  }
  const JsonObject& object() const { return record_; }
  const std::string& place() const { return place_; }

 private:
  JsonObject record_;
  const ShapeOptions& options_;
  const std::string& place_;
};

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

ChatRole role_of(const JsonObject& message, const std::string& key, bool sharegpt) {
  const std::string role = message.string(key);
  if (role == "system") return ChatRole::System;
  if (role == "user" || (sharegpt && role == "human")) return ChatRole::User;
  if (role == "assistant" || (sharegpt && role == "gpt")) return ChatRole::Assistant;
  message.fail(key, sharegpt ? "human, user, gpt, assistant or system" : "system, user or assistant");
}

// `within` names the message.
std::string content_of(const JsonObject& message, const std::string& key, const std::string& within) {
  const Json& content = message.at(key);
  if (!content.is_array()) return message.string(key);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const JsonObject part(content[i], within, fmt::format("{}[{}]", key, i));
    if (part.string("type") != "text") part.fail("type", "\"text\"");
    text += part.string("text");
  }
  return text;
}

void add_system(const Fields& fields, Conversation& out) {
  std::string text = fields.text_or_nothing("system");
  if (!text.empty()) out.push_back({ChatRole::System, std::move(text)});
}

Conversation read_alpaca(const Fields& fields, const ShapeOptions& options) {
  Conversation out;
  add_system(fields, out);
  if (fields.has("history")) {
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
  if (options.prompt) {
    walk_prompt(
        *options.prompt, [&](std::string_view text) { prompt += text; },
        [&](const std::string& name) { prompt += fields.text_or_nothing(name); });
  } else {
    prompt = fields.text("instruction");
    const std::string input = fields.text_or_nothing("input");
    if (!prompt.empty() && !input.empty()) prompt += '\n';
    prompt += input;
  }
  out.push_back({ChatRole::User, std::move(prompt)});
  out.push_back({ChatRole::Assistant, fields.text("output")});
  return out;
}

Conversation read_messages(const Fields& fields, bool sharegpt) {
  const std::string list = sharegpt ? "conversations" : "messages";
  const std::string role = fields.key(sharegpt ? "from" : "role"), content = fields.key(sharegpt ? "value" : "content");
  Conversation out;
  if (sharegpt) add_system(fields, out);
  const size_t count = fields.list(list).size();
  if (count == 0) fields.object().fail(fields.key(list), "at least one message");
  for (size_t i = 0; i < count; ++i) {
    const JsonObject message = fields.item(list, i);
    const std::string within = fmt::format("{}, key '{}[{}]'", fields.place(), fields.key(list), i);
    const ChatRole speaker = role_of(message, role, sharegpt);
    out.push_back({speaker, sharegpt ? message.string(content) : content_of(message, content, within)});
  }
  return out;
}

bool is_token_id(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT32_MAX};
}

bool is_no_label(const Json& value) {
  return value.is_number_integer() && !value.is_number_unsigned() && value.get<int64_t>() == kNoLabel;
}

std::vector<int32_t> read_ids(const Fields& fields, const std::string& name, bool labels) {
  const Json& list = fields.list(name);
  std::vector<int32_t> out;
  out.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_token_id(list[i]) && !(labels && is_no_label(list[i]))) {
      user_error("{}, key '{}[{}]': found {}, expected a token id{}", fields.place(), fields.key(name), i,
                 shortened(list[i]), labels ? " or -100" : "");
    }
    out.push_back(list[i].get<int32_t>());
  }
  return out;
}

TokenSample read_tokens(const Fields& fields) {
  TokenSample out;
  out.ids = read_ids(fields, "input_ids", /*labels=*/false);
  if (out.ids.empty()) fields.object().fail(fields.key("input_ids"), "at least one token id");
  out.labels = fields.has("labels") ? read_ids(fields, "labels", /*labels=*/true) : out.ids;
  if (out.labels.size() != out.ids.size()) {
    fields.object().fail(fields.key("labels"),
                         fmt::format("{} values, as '{}' has", out.ids.size(), fields.key("input_ids")));
  }
  return out;
}

}  // namespace

DataFormat data_format_from_name(std::string_view name) {
  for (const auto& [format, spelt] : kFormats) {
    if (spelt == name) return format;
  }
  if (name == "preference") user_error("data_format: preference pairs cannot be trained on yet");
  user_error("data_format: found '{}', expected alpaca, sharegpt, messages, text or tokens", name);
}

std::string_view name(DataFormat format) {
  for (const auto& [known, spelt] : kFormats) {
    if (known == format) return spelt;
  }
  return "";
}

void validate(const ShapeOptions& options) {
  std::vector<std::string> in_prompt;
  if (options.prompt) {
    walk_prompt(
        *options.prompt, [](std::string_view) {}, [&](std::string name) { in_prompt.push_back(std::move(name)); });
  }
  for (const auto& [ours, theirs] : options.columns) {
    if (std::find(kFields.begin(), kFields.end(), ours) != kFields.end()) continue;
    if (std::find(in_prompt.begin(), in_prompt.end(), ours) != in_prompt.end()) continue;
    user_error("columns: found '{}: {}', expected one of {} before the colon", ours, theirs, fmt::join(kFields, ", "));
  }
}

DataFormat detect_format(const Json& record, const ShapeOptions& options, const std::string& place) {
  const Fields fields(record, options, place);
  if (fields.has("input_ids")) return DataFormat::Tokens;
  if (fields.has("conversations")) return DataFormat::ShareGpt;
  if (fields.has("messages")) return DataFormat::Messages;
  if (fields.has(options.prompt ? "output" : "instruction")) return DataFormat::Alpaca;
  if (fields.has("text")) return DataFormat::Text;
  if (fields.has("chosen")) user_error("{}: found key 'chosen': preference pairs cannot be trained on yet", place);
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items()) {
    if (keys.size() < 8) keys.push_back(shortened(key));
  }
  user_error(
      "{}: found the keys {}, expected one of \"instruction\", \"conversations\", \"messages\", \"text\", "
      "\"input_ids\"; name the fields with --columns",
      place, keys.empty() ? "{}" : fmt::format("{}", fmt::join(keys, ", ")));
}

Example read_example(const Json& record, DataFormat format, const ShapeOptions& options, const std::string& place) {
  const Fields fields(record, options, place);
  switch (format) {
    case DataFormat::Alpaca:
      return read_alpaca(fields, options);
    case DataFormat::ShareGpt:
      return read_messages(fields, /*sharegpt=*/true);
    case DataFormat::Messages:
      return read_messages(fields, /*sharegpt=*/false);
    case DataFormat::Text:
      return Document{fields.text("text")};
    case DataFormat::Tokens:
      break;
  }
  return read_tokens(fields);
}

}  // namespace snug
