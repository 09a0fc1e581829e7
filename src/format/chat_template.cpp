#include "format/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/option_name.h"
#include "format/chat_texts.h"

namespace snug {
namespace {

constexpr std::array<std::string_view, 7> kNames = {"auto", "chatml", "llama2", "llama3", "mistral", "none", "qwen"};
constexpr const char* kPlaceholder = "\xee\x80\x80";  // a character of private use

// Returns whether a call says more than a name.
bool has_arguments(const jinja::Value& call) {
  const jinja::Value* const function = call.as<jinja::DictRep>().find("function");
  const jinja::Value* const arguments =
      function && function->is(jinja::Kind::Dict) ? function->as<jinja::DictRep>().find("arguments") : nullptr;
  if (!arguments) return false;
  if (arguments->is(jinja::Kind::Dict)) return !arguments->as<jinja::DictRep>().entries.empty();
  return arguments->is(jinja::Kind::String) &&
         jinja::view_of(*arguments).find_first_not_of(" {}\t\r\n") != std::string_view::npos;
}

}  // namespace

std::string chat_template_names() { return fmt::format("{}", fmt::join(kNames, ", ")); }

ChatTemplate::Rendering ChatTemplate::run(std::span<const Message> messages, std::span<const jinja::Value> tools,
                                          bool for_generation, const SpecialTexts& special, bool empty) const {
  ChatVariables variables = [&] {
    try {
      return ChatVariables(messages, tools, forms_, empty);
    } catch (const jinja::Failure& failure) {
      user_error("{}", failure.what());
    }
  }();
  jinja::Text text = program_->render(variables.variables(for_generation, special.bos, special.eos, special.others),
                                      probing_ ? JinjaLimits::for_probe() : JinjaLimits::for_input(variables.bytes()));
  return {std::move(text), std::move(variables)};
}

// Renders the messages. Null in place of a content is what the record has, and for what templates ask; a template that
// would print it, or fails, is given an empty text.
ChatTemplate::Rendering ChatTemplate::run(std::span<const Message> messages, std::span<const jinja::Value> tools,
                                          bool for_generation, const SpecialTexts& special) const {
  if (std::ranges::none_of(messages, &Message::no_content)) return run(messages, tools, for_generation, special, false);
  try {
    Rendering rendered = run(messages, tools, for_generation, special, false);
    const bool prints = std::ranges::any_of(rendered.text.runs(), [&](const jinja::Run& run) {
      const ChatVariables::Source* const source = rendered.variables.source(run.mark);
      return source && source->part == ChatVariables::Part::Content && messages[source->message].no_content;
    });
    if (!prints) return rendered;
  } catch (const JinjaLimitError&) {
    throw;
  } catch (const UserError&) {  // it may accept an empty text
  }
  return run(messages, tools, for_generation, special, true);
}

ChatTemplate ChatTemplate::of_program(std::string_view program, SpecialTexts special, std::string_view source) {
  ChatTemplate out;
  out.program_ = JinjaTemplate::parse(program, std::string(source));
  out.jinja_ = program;
  out.special_ = std::move(special);
  out.name_ = "own";
  out.probing_ = true;
  out.look_around(source);
  out.probing_ = false;
  return out;
}

// A template for tools that cannot be used is refused with the first conversation that needs it.
void ChatTemplate::add_for_tools(std::string_view program, std::string_view owner) {
  if (program.empty()) return;
  try {
    for_tools_ = std::make_shared<const ChatTemplate>(
        of_program(program, special_, fmt::format("{}'s chat template for tools", owner)));
  } catch (const UserError& error) {
    tools_refusal_ = error.what();
  }
}

ChatTemplate ChatTemplate::choose(std::string_view name, std::string_view model_template, SpecialTexts special,
                                  std::string_view owner, std::string_view for_tools) {
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    user_error("template: found '{}', expected one of {}", name, chat_template_names());
  }
  ChatTemplate named;
  named.special_ = special;
  named.around_.end_of_turn = special.eos;
  if (name == "none") return named;
  const auto look_like = [](const ChatTemplate& a, const ChatTemplate& b) {
    return a.between_ == b.between_ && a.around_.prompt == b.around_.prompt &&
           a.behind_.substr(0, a.behind_.size() - white_behind(a.behind_)) ==
               b.behind_.substr(0, b.behind_.size() - white_behind(b.behind_));
  };
  const auto of_name = [&](std::string_view one) {
    ChatTemplate out = of_program(jinja_text(one), special, fmt::format("template {}", one));
    out.name_ = one == "qwen" ? "chatml" : one;
    out.built_in_ = true;
    return out;
  };
  const std::string source = fmt::format("template: {} has a chat template that", owner);
  if (name == "auto") {
    if (model_template.empty())
      user_error("template: {} has no chat template; name one with {}: {}", owner, option_name("template"),
                 fmt::join(kNames.begin() + 1, kNames.end(), ", "));  // all but auto
    ChatTemplate own;
    try {
      own = of_program(model_template, special, fmt::format("{}'s chat template", owner));
    } catch (const UserError& error) {
      user_error("{}; {} takes another, or none", error.what(), option_name("template"));
    }
    for (const std::string_view one : {"chatml", "llama3", "llama2", "mistral"}) {
      if (look_like(own, of_name(one))) own.name_ = one;
    }
    own.add_for_tools(for_tools, owner);
    return own;
  }
  named = of_name(name);
  try {
    ChatTemplate own = of_program(model_template, special, source);
    const bool fits =
        !model_template.empty() && look_like(own, named) && (name != "qwen" || !own.default_system_.empty());
    own.name_ = named.name_;
    if (fits) own.add_for_tools(for_tools, owner);
    if (fits) return own;
    const bool begins = name == "qwen" && look_like(own, named) && !special.bos.empty();
    if (begins && own.probes_[0].starts_with(special.bos)) {
      named = of_program("{{ bos_token }}" + std::string(jinja_text(name)), special, "template qwen");
      named.name_ = "chatml";
      named.built_in_ = true;
    }
  } catch (const UserError&) {  // there is none that could tell more
  }
  return named;
}

std::vector<std::string> ChatTemplate::lacking(const std::function<bool(std::string_view)>& is_token) const {
  std::vector<std::string> out;
  for (const std::string& marker : markers_) {
    if (marker != special_.bos && !is_token(marker)) out.push_back(fmt::format("'{}'", marker));
  }
  if (for_tools_) {
    for (std::string& marker : for_tools_->lacking(is_token))
      if (std::ranges::find(out, marker) == out.end()) out.push_back(std::move(marker));
  }
  if (needs_bos_) out.emplace_back("a bos_token");
  if (needs_eos_) out.emplace_back("an eos_token");
  return out;
}

// Finds where texts would stand that leave no byte: a placeholder shows it, if it changes nothing else.
void ChatTemplate::find_empty(std::span<const Message> messages, std::span<const jinja::Value> tools,
                              bool for_generation, const Rendering& rendered, std::vector<ChatSpan>& spans) const {
  std::vector<Message> shown(messages.begin(), messages.end());
  bool any = false;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (spans[i].found || (!shown[i].carries_loss() && !shown[i].loss)) continue;
    shown[i].content = kPlaceholder;
    shown[i].no_content = false;
    any = true;
  }
  if (!any) return;
  const Rendering with = run(shown, tools, for_generation, special_);
  const std::vector<ChatSpan> found = spans_of(with.text, with.variables, shown.size(), around_);
  std::string without;
  size_t from = 0;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (spans[i].found || !found[i].found || shown[i].content != kPlaceholder || found[i].begin < from) continue;
    without += with.text.view(from, found[i].begin);
    spans[i] = {.begin = without.size(), .own_end = without.size(), .end = without.size(), .found = true};
    from = found[i].own_end;
  }
  without += with.text.view(from, with.text.size());
  const std::string_view text = rendered.text.bytes();
  for (ChatSpan& span : spans) {
    if (!span.found || span.begin != span.own_end) continue;
    span.found = without == text;
    if (!span.found) continue;
    const size_t white = white_before(text.substr(span.end));
    for (const std::string& end : around_.ends) {
      if (span.ended || !text.substr(span.end + white).starts_with(end)) continue;
      span.end += white + end.size();
      span.ended = true;
    }
  }
}

// Refuses tools and calls for templates with names, which know only texts.
void ChatTemplate::refuse_beside_texts(std::span<const Message> messages, std::span<const jinja::Value> tools) const {
  if (program_ && !built_in_) return;
  const auto refuse = [&](std::string_view what, std::string_view found) {
    user_error("{}: found {}, expected none: template {} renders texts alone; the model's own may do more", what, found,
               name_);
  };
  if (!tools.empty()) refuse("key 'tools'", "tools");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const std::string of = fmt::format("of message {}", i + 1);
    if (message.role == ChatRole::Tool || message.role == ChatRole::Developer)
      refuse("key 'role' " + of, fmt::format("'{}'", message.name_of_role()));
    if (!message.calls.empty()) refuse("key 'tool_calls' " + of, "calls");
    if (!message.thinking.empty()) refuse(fmt::format("key '{}' {}", message.thinking_key, of), "thinking");
  }
}

// Refuses what the text must show and does not; counts what may be left out of it.
void ChatTemplate::refuse_left_out(std::span<const Message> messages, std::span<const jinja::Value> tools,
                                   const Rendering& rendered, LeftOut* left_out) const {
  using Part = ChatVariables::Part;
  std::vector<bool> shown(rendered.variables.count() + 1);
  for (const jinja::Run& run : rendered.text.runs()) shown[run.mark & ~jinja::kGenerated] = true;
  const auto refuse = [&](std::string_view key, size_t message) {
    user_error("key '{}' of message {}: the chat template leaves out what it says, expected one that renders it", key,
               message + 1);
  };
  size_t question = 0;  // the last one
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].role == ChatRole::User) question = i;
  for (size_t mark = 1; mark < shown.size(); ++mark) {
    const ChatVariables::Source& source = *rendered.variables.source(static_cast<jinja::Mark>(mark));
    if (shown[mark]) continue;
    if (source.part == Part::Tool)
      user_error("key 'tools': the chat template leaves out {} of {} tools, expected one that renders them",
                 tools.size() == 1 ? "the one" : "some", tools.size());
    const Message& message = messages[source.message];
    if (source.part == Part::Call) refuse("tool_calls", source.message);
    if (source.part == Part::Arguments && has_arguments(message.calls[source.index]))
      refuse("tool_calls[].function.arguments", source.message);
    if (source.part == Part::Thinking && message.carries_loss() && left_out) {
      ++left_out->thoughts;
      left_out->last_thoughts += source.message > question;
    }
    if (source.part != Part::Content) continue;
    const std::string_view content =
        message.role == ChatRole::Assistant ? without_thinking(message.content) : message.content;
    if (white_before(content) == content.size()) continue;
    if (message.carries_loss() && !message.calls.empty())
      user_error(
          "key 'content' of message {}: found a text beside calls, which the chat template leaves out, expected none; "
          "a "
          "reply before it may have the text",
          source.message + 1);
    if (message.carries_loss())
      user_error(
          "key 'content' of message {}: found a text that carries loss, which the chat template leaves out, expected "
          "one that it renders; {} takes another",
          source.message + 1, option_name("template"));
    if (message.role == ChatRole::Tool || message.role == ChatRole::Developer)
      user_error(
          "key 'role' of message {}: found '{}', which the chat template leaves out, expected one that it renders; {} "
          "{}=ROLE names another",
          source.message + 1, message.name_of_role(), option_name("roles"), message.name_of_role());
    if (left_out) ++left_out->texts;
  }
}

// Refuses thinking that the template does not render in any turn.
void ChatTemplate::refuse_thinking(std::span<const Message> messages) const {
  if (forms_.writes_thinking) return;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool within = !message.calls.empty() || message.role == ChatRole::Assistant;
    if (!message.thinking.empty() && forms_.thinking_key.empty())
      user_error(
          "key '{}' of message {}: found thinking, which the chat template does not render, expected none, or "
          "<think>...</think> in the reply itself",
          message.thinking_key, i + 1);
    // It reads the key, so thinking in a reply is no text of its own for it.
    if (!forms_.thinking_key.empty() && (!message.thinking.empty() || (within && thinking_bytes(message.content) > 0)))
      user_error(
          "key '{}' of message {}: found thinking, expected none: the chat template reads it, but writes it into no "
          "reply "
          "as transformers runs it",
          message.thinking.empty() ? "content" : message.thinking_key, i + 1);
  }
}

std::vector<Piece> ChatTemplate::render(std::span<const Message> messages, bool for_generation,
                                        std::span<const jinja::Value> tools, LeftOut* left_out) const {
  if (!tools.empty() && !tools_refusal_.empty())
    user_error("{}; {} takes another for all conversations", tools_refusal_, option_name("template"));
  if (!tools.empty() && for_tools_) return for_tools_->render(messages, for_generation, tools, left_out);
  refuse_beside_texts(messages, tools);
  if (!program_) {
    std::vector<Piece> out;
    for (const Message& m : messages)
      add_piece(out, m.content + (m.role == ChatRole::Assistant ? special_.eos : ""), m.carries_loss(),
                m.loss && !m.carries_loss(), m.weight);
    return out;
  }
  if (needs_tools_ && tools.empty())
    user_error(
        "key 'tools': found none, expected a list of tools: the chat template renders no conversation without; {} "
        "takes another",
        option_name("template"));
  refuse_thinking(messages);
  const Rendering rendered = run(messages, tools, for_generation, special_);
  std::vector<ChatSpan> spans = spans_of(rendered.text, rendered.variables, messages.size(), around_);
  find_empty(messages, tools, for_generation, rendered, spans);
  refuse_left_out(messages, tools, rendered, left_out);
  if (left_out && !for_generation) left_out->unasked += is_unasked(rendered.text.bytes(), messages, spans, around_);
  try {
    return pieces_of(rendered.text, rendered.variables, messages, spans, around_, for_generation);
  } catch (const UserError& error) {
    user_error("template {}: {}", name_, error.what());
  }
}

}  // namespace snug
