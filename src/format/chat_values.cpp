#include "format/chat_values.h"

#include <algorithm>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "format/jinja_json.h"

namespace snug {
namespace {

using jinja::DictRep;
using jinja::Kind;
using jinja::Text;
using jinja::Value;

constexpr std::string_view kBegin = "<think>", kEnd = "</think>";

Value text_value(std::string_view text) { return jinja::make_string(Text(std::string(text))); }

void set(const Value& dict, std::string_view key, Value value, jinja::Mark mark = 0) {
  dict.as<DictRep>().set(jinja::make_string(Text(std::string(key), mark)), std::move(value));
}

// Returns what stands between the tags of a reply's thinking, without the white space around it.
std::string between_tags(std::string_view thinking) {
  thinking.remove_suffix(kEnd.size());
  if (const size_t at = thinking.find(kBegin); at != std::string_view::npos) thinking.remove_prefix(at + kBegin.size());
  const jinja::Range kept = jinja::strip(thinking, std::nullopt, jinja::Sides::Both);
  return std::string(thinking.substr(kept.begin, kept.end - kept.begin));
}

// Returns arguments as the template takes them: an object for a text that holds one, or the other way round.
Value in_form(const Value& arguments, const ChatForms& forms, size_t message) {
  const auto refuse = [&](std::string_view found) {
    user_error("key 'arguments' of a call in message {}: found {}, expected an object, or a text of one as JSON",
               message + 1, found);
  };
  if (arguments.is(Kind::Dict) && !forms.arguments_as_object && forms.arguments_as_text) {
    jinja::Budget budget{.steps = UINT64_MAX, .bytes = UINT64_MAX};
    Text text;
    jinja::append_json(budget, arguments, {}, text);
    return jinja::make_string(std::move(text));
  }
  if (!arguments.is(Kind::String)) return arguments;
  const std::string_view text = jinja::view_of(arguments);
  const bool empty = white_before(text) == text.size();
  if (forms.arguments_as_text || !forms.arguments_as_object) {
    // It is written as it stands; what is no object would teach calls that nothing can read.
    if (!empty && (text[white_before(text)] != '{' || !Json::accept(text))) refuse("a text that is none");
    return arguments;
  }
  if (empty) return {Kind::Dict, new DictRep};
  Value read;
  try {
    read = jinja::value_of_json(text);
  } catch (const jinja::Failure&) {
    refuse("a text that is no JSON");
  }
  if (!read.is(Kind::Dict)) refuse(fmt::format("a text of another value ({})", jinja::type_name(read)));
  return read;
}

}  // namespace

jinja::Mark ChatVariables::mark(Source source) {
  sources_.push_back(source);
  return static_cast<jinja::Mark>(sources_.size());
}

// Returns the content; `thinking` gets what goes to a key of its own.
Value ChatVariables::content(const Message& message, size_t at, const ChatForms& forms, bool empty,
                             std::string& thinking) {
  thinking = message.thinking;
  if (message.no_content && !empty && message.content.empty()) {
    Value none = Value::none();
    none.set_mark(mark({at, Part::Content}));
    return none;
  }
  std::string_view rest = message.content;
  const size_t thought = message.role == ChatRole::Assistant ? thinking_bytes(rest) : 0;
  Text text;
  const bool begins = rest.substr(white_before(rest)).starts_with(kBegin);
  if (thought > 0 && begins && !forms.thinking_in_content && !forms.thinking_key.empty()) {
    thinking = between_tags(rest.substr(0, thought));
    rest = without_thinking(rest);
  } else if (thought > 0) {
    std::string_view written = rest.substr(0, thought);
    if (begins && forms.opens_thinking) {
      written.remove_prefix(written.find(kBegin) + kBegin.size());
      written.remove_prefix(white_before(written));
    }
    text.append(written, mark({at, Part::Thinking}));
    rest.remove_prefix(thought);
  } else if (!thinking.empty() && forms.thinking_key.empty()) {
    text.append(fmt::format("{}{}\n</think>\n\n", forms.opens_thinking ? "" : "<think>\n", std::exchange(thinking, "")),
                mark({at, Part::Thinking}));
  }
  text.append(rest, mark({at, Part::Content}));
  return jinja::make_string(std::move(text));
}

Value ChatVariables::call(const Value& whole, size_t message, size_t index, const ChatForms& forms) {
  const jinja::Mark own = mark({message, Part::Call, index}), its = mark({message, Part::Arguments, index});
  const auto with_arguments = [&](const Value& function) {
    const Value out(Kind::Dict, new DictRep);
    for (const auto& [key, value] : function.as<DictRep>().entries) {
      const std::string_view name = jinja::view_of(key);
      set(out, name, name == "arguments" ? marked(in_form(value, forms, message), its) : marked(value, own), own);
    }
    return out;
  };
  const Value out(Kind::Dict, new DictRep);
  for (const auto& [key, value] : whole.as<DictRep>().entries) {
    const std::string_view name = jinja::view_of(key);
    set(out, name, name == "function" && value.is(Kind::Dict) ? with_arguments(value) : marked(value, own), own);
  }
  return out;
}

ChatVariables::ChatVariables(std::span<const Message> messages, std::span<const Value> tools, const ChatForms& forms,
                             bool empty) {
  std::vector<Value> list;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    bytes_ += message.content.size() + message.thinking.size() + 64;
    list.emplace_back(Kind::Dict, new DictRep);
    const Value& dict = list.back();
    set(dict, "role", text_value(message.name_of_role()));
    std::string thinking;
    set(dict, "content", content(message, i, forms, empty, thinking));
    if (!thinking.empty())
      set(dict, forms.thinking_key, jinja::make_string(Text(std::move(thinking), mark({i, Part::Thinking}))));
    std::vector<Value> calls;
    for (size_t k = 0; k < message.calls.size(); ++k) {
      calls.push_back(call(message.calls[k], i, k, forms));
      bytes_ += jinja::bytes_of(message.calls[k]);
    }
    if (!calls.empty()) set(dict, "tool_calls", jinja::make_list(std::move(calls)));
    for (const auto& [key, value] : message.others) {
      set(dict, key, marked(value, mark({i, Part::Other})));
      bytes_ += jinja::bytes_of(value);
    }
  }
  messages_ = jinja::make_list(std::move(list));
  if (tools.empty()) return;
  std::vector<Value> all;
  for (size_t i = 0; i < tools.size(); ++i) {
    all.push_back(marked(tools[i], mark({i, Part::Tool})));
    bytes_ += jinja::bytes_of(tools[i]);
  }
  tools_ = jinja::make_list(std::move(all));
}

JinjaTemplate::Variables ChatVariables::variables(bool for_generation, std::string_view bos, std::string_view eos,
                                                  const std::map<std::string, std::string>& others) const {
  JinjaTemplate::Variables out = {{"messages", messages_},
                                  {"add_generation_prompt", Value(for_generation)},
                                  {"tools", tools_},
                                  {"documents", Value::none()}};
  if (!bos.empty()) out.emplace_back("bos_token", text_value(bos));
  if (!eos.empty()) out.emplace_back("eos_token", text_value(eos));
  for (const auto& other : others) {
    const bool taken = std::ranges::any_of(out, [&](const auto& variable) { return variable.first == other.first; });
    if (!taken) out.emplace_back(other.first, text_value(other.second));
  }
  return out;
}

}  // namespace snug
