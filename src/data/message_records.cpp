// Reads the messages of a conversation.
#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/option_name.h"
#include "data/record_fields.h"
#include "data/record_images.h"
#include "data/record_keys.h"
#include "format/jinja_json.h"

namespace snug {
namespace {

constexpr std::array<const char*, 5> kFlags = {"trainable", "loss", "loss_mask", "mask", "masked"};
constexpr std::string_view kLossWeight = "loss_weight";  // a message's weight under LLaMA-Factory's name
constexpr std::array<std::string_view, 4> kToolRoles = {"tool", "function", "observation", "ipython"};

// Sets the role, and its name if the template may know it by another name than the role's.
void read_role(const JsonObject& message, const std::string& key, const ShapeOptions& options, Message& out) {
  const std::string role = message.string(key);
  if (const auto named = options.roles.find(role); named != options.roles.end()) {
    out.role = named->second;
  } else if (role == "system") {
    out.role = ChatRole::System;
  } else if (role == "user" || role == "human") {
    out.role = ChatRole::User;
  } else if (role == "assistant" || role == "gpt") {
    out.role = ChatRole::Assistant;
  } else if (role == "developer") {
    out.role = ChatRole::Developer;
  } else if (is_in(kToolRoles, role)) {
    out.role = ChatRole::Tool;
    if (role != name_of(ChatRole::Tool)) out.role_name = role;
  } else if (role == "function_call" || role == "tool_call") {
    message.fail(key, "'tool_calls' of an assistant's message: a call is a part of a reply");
  } else {
    message.fail(key, "system, user or human, assistant or gpt, tool, function or observation, developer; " +
                          option_name("roles") + " NAME=ROLE names others");
  }
}

// Returns the content of a message, which `within` names, with its images as place_images() takes them.
std::string content_of(const RecordFields& fields, const JsonObject& message, const std::string& key,
                       const std::string& within, std::vector<std::string>& ignored) {
  const Json& content = message.at(key);
  if (!content.is_array()) return message.string(key);
  const auto is_image = [](const Json& part) {
    if (!part.is_object() || !part.contains("type")) return false;
    const Json& type = part.at("type");
    return type == "image" || type == "image_url" || type == "video";
  };
  std::string between, text;
  if (fields.options().markup && std::any_of(content.begin(), content.end(), is_image))
    between = fields.options().markup->between_parts;
  for (size_t i = 0; i < content.size(); ++i) {
    if (i > 0) text += between;
    const JsonObject part(content[i], within, fmt::format("{}[{}]", key, i));
    if (is_image(content[i])) {
      text += content[i].at("type") == "video" ? text_of_video_part(part, fields, ignored)
                                               : text_of_image_part(part, fields, ignored);
      continue;
    }
    const std::string type = part.string("type");
    for (const char* medium : {"image", "input_image"})
      if (type.starts_with(medium)) part.fail("type", "\"image\" or \"image_url\" for an image");
    for (const char* medium : {"audio", "video", "input_audio", "file"}) {
      if (type.starts_with(medium))
        part.fail("type", "\"text\", \"image\", \"image_url\" or \"video\": sound is not supported yet");
    }
    if (type != "text") part.fail("type", "\"text\": other parts are not rendered yet");
    const char* const said = part.has("text") || !part.has("value") ? "text" : "value";
    check_keys(
        part, KeysOf::Part, [&](std::string_view k) { return k == "type" || k == said; }, ignored);
    text += part.string(said);
  }
  return text;
}

// Reads what the keys of a message say of its loss. A weight of 1 changes nothing.
void read_loss(const JsonObject& message, const RecordFields& fields, Message& out) {
  std::optional<bool>& loss = out.loss;
  const auto say = [&](const std::string& key, bool carries) {
    if (loss.value_or(carries) != carries) message.fail(key, "what the message's other keys say of its loss");
    loss = carries;
  };
  std::vector<std::string> flags(kFlags.begin(), kFlags.end());
  flags.insert(flags.begin(), fields.key("train"));
  for (const std::string& key : flags) {
    if (message.has(key)) say(key, read_flag(message, key, "true or false") != (key == "masked"));
  }
  for (const std::string& key : {fields.key("weight"), std::string(kLossWeight)}) {
    if (!message.has(key)) continue;
    const float weight = read_weight(message, key);
    if (weight == 0) say(key, false);
    if (weight == 0 || weight == 1) continue;
    if (out.weight != 1 && out.weight != weight) message.fail(key, "what the message's other keys say of its loss");
    out.weight = weight;
  }
}

bool is_flag(const RecordFields& fields, std::string_view key) {
  return key == fields.key("weight") || key == fields.key("train") || key == kLossWeight || is_in(kFlags, key);
}

// Reads what a reply holds besides its content, and what a tool's message does.
void read_more(const JsonObject& message, const jinja::Value& ordered, Message& out) {
  if (out.role == ChatRole::Assistant) {
    for (const std::string_view key : kThinkingKeys) {
      const std::string text = message.string(key, "");
      if (text.empty()) continue;
      if (!out.thinking.empty() && text != out.thinking)
        message.fail(key, fmt::format("none beside '{}', which says another thing", out.thinking_key));
      out.thinking = text;
      out.thinking_key = key;
    }
    if (message.has("tool_calls")) out.calls = read_calls(message, "tool_calls", ordered);
    if (!out.thinking.empty() && thinking_bytes(out.content) > 0)
      message.fail(out.thinking_key, "none beside </think> in the reply itself");
  } else if (out.role == ChatRole::Tool) {
    for (const char* key : {"tool_call_id", "name"})
      if (message.has(key)) out.others.emplace_back(key, jinja::make_string(jinja::Text(message.string(key))));
  }
}

// Returns whether read_more() reads a message's key.
bool is_more(ChatRole role, std::string_view key) {
  if (role == ChatRole::Assistant) return is_in(kThinkingKeys, key) || key == "tool_calls";
  return role == ChatRole::Tool && (key == "tool_call_id" || key == "name");
}

// Returns a message's calls, in the order of their keys. `one` is the message as from RecordFields::ordered().
jinja::Value calls_of(const jinja::Value& one) {
  const jinja::Value* const found = one.as<jinja::DictRep>().find("tool_calls");
  check(found != nullptr, "a record's text is not what was read from it");
  return found->is(jinja::Kind::String) ? jinja::value_of_json(jinja::view_of(*found)) : *found;
}

// Reads a message. `ordered` returns its calls.
Message read_message(const RecordFields& fields, const JsonObject& message, const std::string& within,
                     const std::function<jinja::Value()>& ordered, std::vector<std::string>& ignored) {
  const bool sharegpt = message.has(fields.key("from"));
  const std::string role = fields.key(sharegpt ? "from" : "role");
  const std::string content = fields.key(sharegpt ? "value" : "content");
  const bool calls = message.has("tool_calls");
  for (const auto& [name, key] :
       {std::pair(sharegpt ? "from" : "role", role), std::pair(sharegpt ? "value" : "content", content)}) {
    if (!message.value().contains(key) && !(calls && key == content)) {
      user_error("{}: key '{}' is missing, found the keys {}; {} {}=FIELD names it", within, key,
                 names_of_keys(message.value()), option_name("columns"), name);
    }
  }
  Message out;
  read_role(message, role, fields.options(), out);
  check_keys(
      message, KeysOf::Message,
      [&](std::string_view key) {
        return key == role || key == content || is_flag(fields, key) || is_more(out.role, key);
      },
      ignored);
  out.no_content = calls && out.role == ChatRole::Assistant && !message.has(content);
  if (!out.no_content) out.content = content_of(fields, message, content, within, ignored);
  read_loss(message, fields, out);
  try {
    read_more(message, calls && out.role == ChatRole::Assistant ? ordered() : jinja::Value(), out);
  } catch (const jinja::Failure& failure) {
    message.fail("tool_calls", fmt::format("a list, or a text of one as JSON ({})", failure.what()));
  }
  return out;
}

}  // namespace

void add_system(const RecordFields& fields, Conversation& out) {
  std::string text = fields.text_or_nothing("system");
  if (!text.empty()) out.push_back({ChatRole::System, std::move(text)});
}

namespace {

// Reads the messages of a list, or the one that an object is. `place` names the value within the record, and
// `ordered` returns it as from RecordFields::ordered(). Unknown keys that are passed over are added to `ignored`, as
// those of `name`.
Conversation read_listed(const RecordFields& fields, const Json& value, const std::string& name,
                         const std::string& place, const std::function<jinja::Value()>& ordered,
                         std::vector<std::string>& ignored) {
  Conversation out;
  std::vector<std::string> keys;
  const bool has_system = !fields.text_or_nothing("system").empty();
  std::optional<jinja::Value> whole;  // set once a message has calls
  const auto calls = [&](std::optional<size_t> i) {
    if (!whole) whole = ordered();
    return calls_of(i ? whole->as<jinja::ListRep>().items.at(*i) : *whole);
  };
  const auto read = [&](const Json& one, const std::string& at, std::optional<size_t> i) {
    const JsonObject message(one, fields.place(), at);
    out.push_back(read_message(
        fields, message, fmt::format("{}, key '{}'", fields.place(), at), [&] { return calls(i); }, keys));
    if (has_system && out.back().role == ChatRole::System)
      fields.object().fail(fields.key("system"), fmt::format("none beside '{}', which is a system text too", at));
  };
  if (value.is_object()) {
    read(value, place, std::nullopt);
  } else {
    for (size_t i = 0; i < value.size(); ++i) read(value[i], fmt::format("{}[{}]", place, i), i);
  }
  for (const std::string& key : keys) {
    std::string path = fmt::format("{}{}.{}", fields.key(name), value.is_object() ? "" : "[]", key);
    if (!is_in(ignored, path)) ignored.push_back(std::move(path));
  }
  return out;
}

}  // namespace

Conversation read_messages(const RecordFields& fields, const std::string& name, std::vector<std::string>& ignored) {
  const Json& list = fields.list(name);
  const std::string key = fields.key(name);
  if (list.empty()) fields.object().fail(key, "at least one message");
  return read_listed(
      fields, list, name, key, [&] { return fields.ordered(key); }, ignored);
}

Conversation read_reply(const RecordFields& fields, const std::string& name, std::optional<size_t> element,
                        std::vector<std::string>& ignored) {
  const std::string key = fields.key(name);
  const Json& field = fields.object().at(key);
  const Json& value = element ? field.at(*element) : field;
  const std::string place = element ? fmt::format("{}[{}]", key, *element) : key;
  if (value.is_string()) return {{ChatRole::Assistant, value.get<std::string>()}};
  if (!value.is_structured() || value.empty())
    user_error("{}, key '{}': found {}, expected a text, a message or a list of messages", fields.place(), place,
               shortened(value));
  const auto ordered = [&] {
    const jinja::Value all = fields.ordered(key);
    return element ? all.as<jinja::ListRep>().items.at(*element) : all;
  };
  return read_listed(fields, value, name, place, ordered, ignored);
}

}  // namespace snug
