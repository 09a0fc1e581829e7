// The messages of a conversation.
#include <algorithm>
#include <array>
#include <utility>

#include "data/record_fields.h"
#include "data/record_keys.h"

namespace snug {
namespace {

constexpr std::array<const char*, 5> kFlags = {"trainable", "loss", "loss_mask", "mask", "masked"};
constexpr std::array<std::string_view, 10> kUnknownRoles = {"tool",        "tools",    "tool_call",     "tool_response",
                                                            "tool_result", "function", "function_call", "observation",
                                                            "developer",   "ipython"};

ChatRole role_of(const JsonObject& message, const std::string& key, const ShapeOptions& options) {
  const std::string role = message.string(key);
  if (const auto named = options.roles.find(role); named != options.roles.end()) return named->second;
  if (role == "system") return ChatRole::System;
  if (role == "user" || role == "human") return ChatRole::User;
  if (role == "assistant" || role == "gpt") return ChatRole::Assistant;
  if (is_in(kUnknownRoles, role)) message.fail(key, "system, user or assistant: this role is not rendered yet");
  message.fail(key, "system, user or human, assistant or gpt; --roles NAME=ROLE names others");
}

// `within` names the message.
std::string content_of(const JsonObject& message, const std::string& key, const std::string& within,
                       std::vector<std::string>& ignored) {
  const Json& content = message.at(key);
  if (!content.is_array()) return message.string(key);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const JsonObject part(content[i], within, fmt::format("{}[{}]", key, i));
    const std::string type = part.string("type");
    for (const char* medium : {"image", "audio", "video", "input_image", "input_audio", "file"}) {
      if (type.starts_with(medium)) part.fail("type", "\"text\": images, sound and video are not there yet");
    }
    if (type != "text") part.fail("type", "\"text\": other parts are not rendered yet");
    check_keys(
        part, KeysOf::Part, [](std::string_view k) { return k == "type" || k == "text"; }, ignored);
    text += part.string("text");
  }
  return text;
}

// What the keys of a message say of its loss. A weight of 1 changes nothing.
std::optional<bool> loss_of(const JsonObject& message, const RecordFields& fields) {
  std::optional<bool> loss;
  const auto say = [&](const std::string& key, bool carries) {
    if (loss.value_or(carries) != carries) message.fail(key, "what the message's other keys say of its loss");
    loss = carries;
  };
  std::vector<std::string> flags(kFlags.begin(), kFlags.end());
  flags.insert(flags.begin(), fields.key("train"));
  for (const std::string& key : flags) {
    if (message.has(key)) say(key, read_flag(message, key, "true or false") != (key == "masked"));
  }
  const std::string weight = fields.key("weight");
  if (message.has(weight) && !read_flag(message, weight, kWeights)) say(weight, false);
  return loss;
}

bool is_flag(const RecordFields& fields, std::string_view key) {
  return key == fields.key("weight") || key == fields.key("train") || is_in(kFlags, key);
}

Message read_message(const RecordFields& fields, const JsonObject& message, const std::string& within,
                     std::vector<std::string>& ignored) {
  const bool sharegpt = message.has(fields.key("from"));
  const std::string role = fields.key(sharegpt ? "from" : "role");
  const std::string content = fields.key(sharegpt ? "value" : "content");
  for (const auto& [name, key] : {std::pair("role", role), std::pair("content", content)}) {
    if (!message.value().contains(key)) {
      user_error("{}: key '{}' is missing, found the keys {}; --columns {}=FIELD names it", within, key,
                 names_of_keys(message.value()), name);
    }
  }
  check_keys(
      message, KeysOf::Message,
      [&](std::string_view key) { return key == role || key == content || is_flag(fields, key); }, ignored);
  const ChatRole speaker = role_of(message, role, fields.options());
  return {speaker, content_of(message, content, within, ignored), loss_of(message, fields)};
}

}  // namespace

void add_system(const RecordFields& fields, Conversation& out) {
  std::string text = fields.text_or_nothing("system");
  if (!text.empty()) out.push_back({ChatRole::System, std::move(text)});
}

Conversation read_messages(const RecordFields& fields, const std::string& name, std::vector<std::string>& ignored) {
  Conversation out;
  std::vector<std::string> keys;
  const Json& list = fields.list(name);
  if (list.empty()) fields.object().fail(fields.key(name), "at least one message");
  const bool has_system = !fields.text_or_nothing("system").empty();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", fields.key(name), i);
    const JsonObject message(list[i], fields.place(), place);
    out.push_back(read_message(fields, message, fmt::format("{}, key '{}'", fields.place(), place), keys));
    if (has_system && out.back().role == ChatRole::System) {
      fields.object().fail(fields.key("system"), fmt::format("none beside '{}', which is a system text too", place));
    }
  }
  for (const std::string& key : keys) {
    std::string whole = fmt::format("{}[].{}", fields.key(name), key);
    if (!is_in(ignored, whole)) ignored.push_back(std::move(whole));
  }
  return out;
}

}  // namespace snug
