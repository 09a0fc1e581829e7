#include "format/modelfile.h"

#include <algorithm>
#include <functional>
#include <span>

#include "base/error.h"

namespace snug {
namespace {

constexpr std::string_view kSystem = "SYSTEMTEXT", kQuestion = "FIRSTQUESTION", kReply = "FIRSTREPLY",
                           kSecond = "SECONDQUESTION", kSecondReply = "SECONDREPLY", kThird = "THIRDQUESTION";

std::optional<std::string> rendered(const ChatTemplate& chat, std::span<const Message> messages, bool asks = true) {
  try {
    std::string text;
    for (const Piece& piece : chat.render(messages, asks)) text += piece.text;
    return text;
  } catch (const JinjaLimitError&) {
    throw;
  } catch (const UserError&) {  // the template refuses such a conversation
    return std::nullopt;
  }
}

Message said(ChatRole role, std::string_view text) { return {.role = role, .content = std::string(text)}; }

// Returns a conversation of questions and replies in turn.
std::vector<Message> conversation(bool system, std::initializer_list<std::string_view> texts) {
  std::vector<Message> messages;
  if (system) messages.push_back(said(ChatRole::System, kSystem));
  ChatRole role = ChatRole::User;
  for (const std::string_view text : texts) {
    messages.push_back(said(role, text));
    role = role == ChatRole::User ? ChatRole::Assistant : ChatRole::User;
  }
  return messages;
}

// Returns what stands between two texts, the first of which may be empty for the start, and the second for the end.
std::optional<std::string> between(const std::string& text, std::string_view first, std::string_view second) {
  const size_t at = text.find(first);
  if (at == text.npos) return std::nullopt;
  const size_t begin = at + first.size(), end = second.empty() ? text.size() : text.find(second, begin);
  if (end == text.npos) return std::nullopt;
  return text.substr(begin, end - begin);
}

// Holds what stands around the parts of a conversation.
struct Forms {
  OllamaTemplate::System system = OllamaTemplate::System::Refused;
  std::string before_system, after_system, without_system;  // up to the first question
  std::string before_question, before_reply, after_reply;

  std::string compose(std::span<const Message> messages) const {
    std::string text = without_system;
    for (const Message& message : messages) {
      if (message.role == ChatRole::System) text = before_system + message.content + after_system;
      if (message.role == ChatRole::User) text += before_question + message.content + before_reply;
      if (message.role == ChatRole::Assistant) text += message.content + after_reply;
    }
    return text;
  }
};

std::optional<Forms> find_forms(const ChatTemplate& chat) {
  const auto asked = rendered(chat, conversation(false, {kQuestion}));
  const auto again = rendered(chat, conversation(false, {kQuestion, kReply, kSecond}));
  const auto ended = rendered(chat, conversation(false, {kQuestion, kReply}), false);
  if (!asked || !again || !ended) return std::nullopt;
  const auto start = between(*asked, "", kQuestion), header = between(*asked, kQuestion, ""),
             turn = between(*again, kReply, kSecond), end = between(*ended, kReply, "");
  if (!start || !header || !turn || !end || !turn->starts_with(*end)) return std::nullopt;
  Forms forms;
  forms.before_reply = *header;
  forms.after_reply = *end;
  forms.before_question = turn->substr(end->size());
  if (!start->ends_with(forms.before_question)) return std::nullopt;
  forms.without_system = start->substr(0, start->size() - forms.before_question.size());
  const auto with_system = rendered(chat, conversation(true, {kQuestion}));
  if (with_system) forms.system = OllamaTemplate::System::LeftOut;
  const auto before = with_system ? between(*with_system, "", kSystem) : std::nullopt;
  const auto after = with_system ? between(*with_system, kSystem, kQuestion) : std::nullopt;
  if (!before || !after || !after->ends_with(forms.before_question)) return forms;
  forms.system = OllamaTemplate::System::Taken;
  forms.before_system = *before;
  forms.after_system = after->substr(0, after->size() - forms.before_question.size());
  return forms;
}

bool holds(const ChatTemplate& chat, const Forms& forms) {
  for (const bool system : {false, true}) {
    if (system && forms.system != OllamaTemplate::System::Taken) continue;
    for (const auto& messages : {conversation(system, {kQuestion}), conversation(system, {kQuestion, kReply, kSecond}),
                                 conversation(system, {kQuestion, kReply, kSecond, kSecondReply, kThird})})
      if (rendered(chat, messages) != forms.compose(messages)) return false;
  }
  return true;
}

void leave_out(std::string& text, std::string_view start) {
  if (!start.empty() && text.starts_with(start)) text.erase(0, start.size());
}

}  // namespace

std::optional<OllamaTemplate> ollama_template(const ChatTemplate& chat, std::string_view bos) {
  std::optional<Forms> forms = find_forms(chat);
  if (forms && forms->system == OllamaTemplate::System::Taken && !holds(chat, *forms)) {
    // Longer conversations may have the system text elsewhere.
    forms->system = OllamaTemplate::System::LeftOut;
  }
  if (!forms || !holds(chat, *forms)) return std::nullopt;
  leave_out(forms->before_system, bos);
  leave_out(forms->without_system, bos);
  for (const std::string* text : {&forms->before_system, &forms->after_system, &forms->without_system,
                                  &forms->before_question, &forms->before_reply, &forms->after_reply})
    for (const char* mark : {"{{", "}}", "\"\"\""})
      if (text->find(mark) != text->npos) return std::nullopt;
  std::string text = forms->without_system;
  if (forms->system == OllamaTemplate::System::Taken)
    text = fmt::format("{{{{ if .System }}}}{}{{{{ .System }}}}{}{{{{ else }}}}{}{{{{ end }}}}", forms->before_system,
                       forms->after_system, forms->without_system);
  text += fmt::format(
      "{{{{ range .Messages }}}}{{{{ if eq .Role \"user\" }}}}{}{{{{ .Content }}}}{}"
      "{{{{ else if eq .Role \"assistant\" }}}}{{{{ .Content }}}}{}{{{{ end }}}}{{{{ end }}}}",
      forms->before_question, forms->before_reply, forms->after_reply);
  return OllamaTemplate{std::move(text), forms->system};
}

std::string write_modelfile(const Modelfile& modelfile) {
  std::string text = fmt::format("FROM {}\n", modelfile.from);
  if (!modelfile.adapter.empty()) text += fmt::format("ADAPTER {}\n", modelfile.adapter);
  if (!modelfile.chat_template.empty()) text += fmt::format("TEMPLATE \"\"\"{}\"\"\"\n", modelfile.chat_template);
  for (const std::string& stop : modelfile.stops) {
    const char* quotes = stop.find_first_of("\"\n") == stop.npos ? "\"" : "\"\"\"";
    text += fmt::format("PARAMETER stop {0}{1}{0}\n", quotes, stop);
  }
  return text;
}

}  // namespace snug
