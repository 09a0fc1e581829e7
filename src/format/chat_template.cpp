#include "format/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "format/chat_programs.h"
#include "format/chat_texts.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr std::string_view kQwenSystem = "You are a helpful assistant.";
constexpr std::string_view kLlama3Dates = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
constexpr std::array<std::string_view, 7> kNames = {"auto", "chatml", "llama2", "llama3", "mistral", "none", "qwen"};

std::string_view role_name(ChatRole role) {
  switch (role) {
    case ChatRole::System:
      return "system";
    case ChatRole::User:
      return "user";
    case ChatRole::Assistant:
      return "assistant";
  }
  return "";
}

void add(std::vector<Piece>& out, std::string_view text, bool loss = false, bool masked = false) {
  if (text.empty()) return;
  if (out.empty() || out.back().loss != loss || out.back().masked != masked) {
    out.push_back({.text = "", .loss = loss, .masked = masked});
  }
  out.back().text += text;
}

// What a message says, as it is rendered.
void add(std::vector<Piece>& out, std::string_view text, const Message& message) {
  const bool loss = message.loss.value_or(message.role == ChatRole::Assistant);
  add(out, text, loss, /*masked=*/message.loss && !loss);
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

constexpr std::string_view kWhite = " \t\n\r\v\f";

// What Jinja prints of the text before a tag, with the options of transformers (trim_blocks, lstrip_blocks). `mark`:
// the character after "{{", "{%" or "{#".
std::string_view printed(std::string_view text, bool starts_line, std::string_view opening, char mark) {
  if (mark == '-') return text.substr(0, text.find_last_not_of(kWhite) + 1);
  if (mark == '+' || opening == "{{") return text;
  const size_t line = text.rfind('\n') + 1;
  const bool indents = line > 0 || starts_line;
  return indents && text.find_first_not_of(kWhite, line) == std::string_view::npos ? text.substr(0, line) : text;
}

// Reads a tag behind its "{{" or "{%" up to its end, in the spelling that tags_of() describes. Returns its trim mark,
// or another character if it has none.
char read_tag(std::string_view& rest, std::string& tag) {
  const std::string_view closing = tag == "{{" ? "}}" : "%}";
  char quote = 0;  // of the string that is open
  for (size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    if (quote && c == '\\' && i + 1 < rest.size()) {
      tag += rest.substr(i++, 2);
    } else if (quote && c != quote) {
      tag += c == '\n' ? "\\n" : c == '\'' ? "\\'" : std::string(1, c);
    } else if (c == '\'' || c == '"') {
      quote = quote ? 0 : c;
      tag += '\'';
    } else if (rest.substr(i).starts_with(closing)) {
      const char mark = i == 0 ? '\0' : rest[i - 1];
      if (mark == '-' || (mark == '+' && closing == "%}")) tag.pop_back();
      tag += closing;
      rest.remove_prefix(i + 2);
      return mark;
    } else if (kWhite.find(c) == std::string_view::npos) {
      tag += c;
    }
  }
  rest = {};  // the file ends in it
  return '\0';
}

// A Jinja program as a list of its tags in one spelling: no white space between words, no trim marks ({%-), strings in
// single quotes with \n for newlines and joined where they are added, message.role for message['role']. Comments are
// left out. Text between tags stands in the list where Jinja would print it.
std::vector<std::string> tags_of(std::string_view jinja) {
  const std::string program = replaced(replaced(jinja, "\r\n", "\n"), "\r", "\n");
  std::string_view rest = program;
  if (rest.ends_with('\n')) rest.remove_suffix(1);
  std::vector<std::string> tags;
  bool starts_line = true;
  while (!rest.empty()) {
    size_t begin = rest.find('{');
    while (begin < rest.size() &&
           (begin + 1 == rest.size() || std::string_view("{%#").find(rest[begin + 1]) == std::string_view::npos)) {
      begin = rest.find('{', begin + 1);
    }
    if (begin >= rest.size()) {
      tags.emplace_back(rest);
      break;
    }
    const std::string_view opening = rest.substr(begin, 2);
    char mark = begin + 2 < rest.size() ? rest[begin + 2] : '\0';
    const std::string_view text = printed(rest.substr(0, begin), starts_line, opening, mark);
    if (!text.empty()) tags.emplace_back(text);
    rest.remove_prefix(begin + 2);
    if (mark == '-' || (mark == '+' && opening != "{{")) rest.remove_prefix(1);
    if (opening == "{#") {
      const size_t end = std::min(rest.find("#}"), rest.size());
      mark = end == 0 ? '\0' : rest[end - 1];
      rest.remove_prefix(std::min(end + 2, rest.size()));
    } else {
      std::string tag(opening);
      mark = read_tag(rest, tag);
      tags.push_back(replaced(replaced(replaced(tag, "'+'", ""), "['role']", ".role"), "['content']", ".content"));
    }
    starts_line = opening != "{{" && mark != '-' && mark != '+' && rest.starts_with('\n');
    if (starts_line) rest.remove_prefix(1);
    if (mark == '-') rest.remove_prefix(std::min(rest.find_first_not_of(kWhite), rest.size()));
  }
  return tags;
}

// The text of a string's inside as tags_of() writes it; nothing if it does not end there or is empty.
std::optional<std::string> unescaped(std::string_view inside) {
  std::string text;
  for (size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] == '\'') return {};
    if (inside[i] == '\\') {
      if (++i == inside.size() || std::string_view("n\\'\"").find(inside[i]) == std::string_view::npos) return {};
      text += inside[i] == 'n' ? '\n' : inside[i];
    } else {
      text += inside[i];
    }
  }
  return text.empty() ? std::nullopt : std::optional(text);
}

// Whether a tag is that of a line of chat_programs.h. `wild` becomes the text that its '*' stands for.
bool matches(std::string_view line, std::string_view tag, std::string& wild) {
  const size_t star = line.find('*');
  if (star == std::string_view::npos) return tag == line;
  const std::string_view before = line.substr(0, star), after = line.substr(star + 1);
  if (tag.size() < before.size() + after.size() || !tag.starts_with(before) || !tag.ends_with(after)) return false;
  auto text = unescaped(tag.substr(before.size(), tag.size() - before.size() - after.size()));
  if (text) wild = *std::move(text);
  return text.has_value();
}

// The text that the last '*' of a program of chat_programs.h stands for, empty if it has none; nothing if the tags are
// not all the program's.
std::optional<std::string> match_program(std::string_view program, std::span<const std::string> tags) {
  std::string wild;
  bool group = false, skips = false;  // in a run of lines that may be absent; it is
  while (!program.empty()) {
    std::string_view line = program.substr(0, program.find('\n'));
    program.remove_prefix(std::min(line.size() + 1, program.size()));
    const bool may_be_absent = line.starts_with('?');
    if (may_be_absent) line.remove_prefix(1);
    const bool found = !tags.empty() && matches(line, tags.front(), wild);
    if (!may_be_absent || !group) skips = may_be_absent && !found;
    group = may_be_absent;
    if (line.empty() || skips) continue;
    if (!found) return {};
    tags = tags.subspan(1);
  }
  return tags.empty() ? std::optional(wild) : std::nullopt;
}

// What Python's str.strip() takes away.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// Text that is not UTF-8 stays as it is: the tokenizer refuses it.
std::string_view stripped(std::string_view text) {
  if (find_invalid_utf8(text)) return text;
  while (!text.empty()) {
    const CodePoint first = decode_utf8(text, 0);
    if (!is_space(first.value)) break;
    text.remove_prefix(first.bytes);
  }
  while (!text.empty()) {
    const size_t last = start_of_last(text, text.size());
    if (!is_space(decode_utf8(text, last).value)) break;
    text = text.substr(0, last);
  }
  return text;
}

}  // namespace

std::string chat_template_names() { return fmt::format("{}", fmt::join(kNames, ", ")); }

std::optional<ChatTemplate> ChatTemplate::recognise(std::string_view model_template, const SpecialTexts& special) {
  const std::vector<std::string> tags = tags_of(model_template);
  const auto is = [&](std::string_view program) { return match_program(program, tags); };
  ChatTemplate found;
  found.special_ = special;
  found.jinja_ = model_template;
  if (const auto system = is(kChatMlProgram)) {
    found.family_ = Family::ChatML;
    found.opens_with_bos_ = tags.front() == "{{bos_token}}";
    found.default_system_ = *system;
  } else if (const auto qwen_system = is(kQwen25Program)) {
    found.family_ = Family::ChatML;
    found.default_system_ = *qwen_system;
  } else if (is(kLlama3Program)) {
    found.family_ = Family::Llama3;
  } else if (is(kLlama31Program)) {
    found.family_ = Family::Llama3;
    found.dated_ = true;
  } else if (is(kLlama2Program)) {
    found.family_ = Family::Llama2;
  } else if (is(kMistralProgram)) {
    found.family_ = Family::Mistral;
  } else {
    return {};
  }
  return found;
}

ChatTemplate ChatTemplate::choose(std::string_view name, std::string_view model_template, SpecialTexts special,
                                  std::string_view owner) {
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    user_error("template: found '{}', expected one of {}", name, chat_template_names());
  }
  std::optional<ChatTemplate> own = recognise(model_template, special);
  if (name == "auto") {
    if (own) return *own;
    user_error("template: {} {}; name one with --template: {}", owner,
               model_template.empty() ? "has no chat template" : "has a chat template of no family known here",
               fmt::join(kNames.begin() + 1, kNames.end(), ", "));  // all but auto
  }
  ChatTemplate named;
  named.family_ = name == "chatml" || name == "qwen" ? Family::ChatML
                  : name == "llama3"                 ? Family::Llama3
                  : name == "llama2"                 ? Family::Llama2
                  : name == "mistral"                ? Family::Mistral
                                                     : Family::None;
  named.special_ = std::move(special);
  named.jinja_ = jinja_text(named.name());
  if (own && own->family_ == named.family_) named = *own;
  if (name == "qwen" && named.default_system_.empty()) {
    named.default_system_ = kQwenSystem;
    named.jinja_ = fmt::format("{}{}", named.opens_with_bos_ ? "{{ bos_token }}" : "", jinja_text(name));
  }
  return named;
}

std::string_view ChatTemplate::name() const {
  switch (family_) {
    case Family::ChatML:
      return "chatml";
    case Family::Llama3:
      return "llama3";
    case Family::Llama2:
      return "llama2";
    case Family::Mistral:
      return "mistral";
    case Family::None:
      break;
  }
  return "none";
}

std::string ChatTemplate::end_of_turn() const {
  if (family_ == Family::ChatML) return "<|im_end|>";
  if (family_ == Family::Llama3) return "<|eot_id|>";
  return special_.eos;
}

std::vector<std::string> ChatTemplate::lacking(const std::function<bool(std::string_view)>& is_token) const {
  std::vector<std::string> markers;
  if (family_ == Family::ChatML) markers = {"<|im_start|>", "<|im_end|>"};
  if (family_ == Family::Llama3) markers = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  std::erase_if(markers, is_token);
  for (std::string& marker : markers) marker = fmt::format("'{}'", marker);
  // transformers fails where a program adds a text to a special token that is not there.
  const bool adds_bos = family_ == Family::Llama2 || (family_ == Family::Llama3 && !dated_);
  if (adds_bos && special_.bos.empty()) markers.emplace_back("a bos_token");
  if ((family_ == Family::Llama2 || family_ == Family::Mistral) && special_.eos.empty())
    markers.emplace_back("an eos_token");
  return markers;
}

bool ChatTemplate::renders_as(const ChatTemplate& other) const {
  return family_ == other.family_ && default_system_ == other.default_system_ &&
         opens_with_bos_ == other.opens_with_bos_ && dated_ == other.dated_;
}

std::vector<Piece> ChatTemplate::render(std::span<const Message> messages, bool for_generation) const {
  std::vector<Piece> out;
  const bool system_first = !messages.empty() && messages[0].role == ChatRole::System;
  switch (family_) {
    case Family::None:
      for (const Message& m : messages) {
        add(out, m.content + (m.role == ChatRole::Assistant ? special_.eos : ""), m);
      }
      break;
    case Family::ChatML:
      if (opens_with_bos_) add(out, special_.bos);
      if (!default_system_.empty() && !system_first) {
        add(out, fmt::format("<|im_start|>system\n{}<|im_end|>\n", default_system_));
      }
      for (const Message& m : messages) {
        add(out, fmt::format("<|im_start|>{}\n", role_name(m.role)));
        add(out, m.content + "<|im_end|>", m);
        add(out, "\n");
      }
      if (for_generation) add(out, "<|im_start|>assistant\n");
      break;
    case Family::Llama3:
      add(out, special_.bos);
      if (dated_) {
        add(out, fmt::format("<|start_header_id|>system<|end_header_id|>\n\n{}", kLlama3Dates));
        if (system_first) {
          add(out, fmt::format("{}<|eot_id|>", stripped(messages[0].content)), messages[0]);
          messages = messages.subspan(1);
        } else {
          add(out, "<|eot_id|>");
        }
      }
      for (const Message& m : messages) {
        add(out, fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role_name(m.role)));
        add(out, fmt::format("{}<|eot_id|>", stripped(m.content)), m);
      }
      if (for_generation) add(out, "<|start_header_id|>assistant<|end_header_id|>\n\n");
      break;
    case Family::Llama2:
    case Family::Mistral:
      render_turns_in_pairs(messages, out);
      break;
  }
  return out;
}

void ChatTemplate::render_turns_in_pairs(std::span<const Message> messages, std::vector<Piece>& out) const {
  const bool llama2 = family_ == Family::Llama2;
  std::string system;
  if (llama2 && !messages.empty() && messages[0].role == ChatRole::System) {
    const std::optional<bool> loss = messages[0].loss;
    system = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n", messages[0].content);
    messages = messages.subspan(1);
    if (!messages.empty() && messages[0].loss != loss) {
      user_error(
          "template llama2: found a system message and a first turn that carry loss unequally, expected equally: "
          "they are one text; use --template chatml");
    }
  }
  if (!llama2) add(out, special_.bos);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    const ChatRole expected = i % 2 == 0 ? ChatRole::User : ChatRole::Assistant;
    if (m.role != expected) {
      user_error(
          "template {}: found a message of role {}, expected user and assistant in turn{}: use --template chatml",
          name(), role_name(m.role), llama2 ? " after one system message at most" : "");
    }
    if (m.role == ChatRole::Assistant) {
      add(out, llama2 ? fmt::format(" {} {}", stripped(m.content), special_.eos) : m.content + special_.eos, m);
    } else if (llama2) {
      const std::string text = i == 0 ? system + m.content : m.content;
      add(out, fmt::format("{}[INST] {} [/INST]", special_.bos, stripped(text)), m);
    } else {
      add(out, fmt::format("[INST] {} [/INST]", m.content), m);
    }
  }
}

}  // namespace snug
