#include "format/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

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

void add(std::vector<Piece>& out, std::string_view text, bool loss) {
  if (text.empty()) return;
  if (out.empty() || out.back().loss != loss) out.push_back({.text = "", .loss = loss});
  out.back().text += text;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

size_t count(std::string_view text, std::string_view part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++times;
  return times;
}

// A Jinja program in one spelling, so that pieces can be found in it: no comments, no white space between tokens or
// around tags, no trim marks ({%-), strings in single quotes with \n for newlines and joined where they are added,
// message.role for message['role'].
std::string canonical(std::string_view jinja) {
  std::string out;
  char quote = 0;  // the string that is open
  bool in_tag = false;
  for (size_t i = 0; i < jinja.size(); ++i) {
    const char c = jinja[i];
    const std::string_view two = jinja.substr(i, 2);
    if (quote && c == '\\' && two.size() == 2) {
      out += two;
      ++i;
    } else if (quote && c == quote) {
      quote = 0;
      out += '\'';
    } else if (quote) {
      out += c == '\n' ? "\\n" : c == '\'' ? "\\'" : std::string(1, c);
    } else if (!in_tag && two == "{#") {
      i = std::min(jinja.find("#}", i), jinja.size() - 2) + 1;
    } else if (in_tag && (c == '\'' || c == '"')) {
      quote = c;
      out += '\'';
    } else if (!in_tag && (two == "{{" || two == "{%")) {
      in_tag = true;
      out += two;
      i += jinja.substr(i + 2, 1) == "-" ? 2 : 1;
    } else if (in_tag && (two == "-}" || two == "-%")) {
      continue;
    } else if (in_tag && (two == "}}" || two == "%}")) {
      in_tag = false;
      out += two;
      ++i;
    } else if (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
      out += c;
    }
  }
  return replaced(replaced(replaced(out, "'+'", ""), "['role']", ".role"), "['content']", ".content");
}

// What stands between `before` and `after` in one string of a canonical program; nothing if no string has both.
std::optional<std::string> string_between(std::string_view program, std::string_view before, std::string_view after) {
  for (size_t at = program.find(before); at != std::string_view::npos; at = program.find(before, at + 1)) {
    std::string text;
    for (size_t i = at + before.size(); i < program.size() && program[i] != '\''; ++i) {
      if (program.substr(i).starts_with(after)) return text;
      const bool escaped = program[i] == '\\' && i + 1 < program.size();
      if (escaped) ++i;
      text += escaped && program[i] == 'n' ? '\n' : program[i];
    }
  }
  return {};
}

// The code point that starts a UTF-8 text, and its bytes; malformed bytes count one by one, as themselves.
std::pair<uint32_t, size_t> first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  if (text.size() >= 3 && (byte(0) & 0xf0u) == 0xe0u) {
    return {(byte(0) & 0xfu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu), 3};
  }
  if (text.size() >= 2 && (byte(0) & 0xe0u) == 0xc0u) return {(byte(0) & 0x1fu) << 6 | (byte(1) & 0x3fu), 2};
  return {byte(0), 1};
}

// What Python's str.strip() takes away.
bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string_view stripped(std::string_view text) {
  while (!text.empty()) {
    const auto [c, bytes] = first_code_point(text);
    if (!is_space(c)) break;
    text.remove_prefix(bytes);
  }
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xc0u) == 0x80u) --last;
    const auto [c, bytes] = first_code_point(text.substr(last));
    if (!is_space(c) || last + bytes != text.size()) break;
    text.remove_suffix(bytes);
  }
  return text;
}

}  // namespace

std::string chat_template_names() { return fmt::format("{}", fmt::join(kNames, ", ")); }

std::optional<ChatTemplate> ChatTemplate::recognise(std::string_view model_template, const SpecialTexts& special) {
  const std::string program = canonical(model_template);
  ChatTemplate found;
  found.special_ = special;
  // Templates that think rewrite earlier replies, or open the next one with a thought.
  if (has(program, "think")) return {};
  if (has(program, "'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'") &&
      has(program, "'<|im_start|>assistant\\n'")) {
    found.family_ = Family::ChatML;
    found.opens_with_bos_ = has(program, "{{bos_token}}");
    found.default_system_ = string_between(program, "'<|im_start|>system\\n", "<|im_end|>\\n'").value_or("");
    return found;
  }
  if (has(program, "'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>'") &&
      has(program, "bos_token")) {
    found.family_ = Family::Llama3;
    found.dated_ =
        has(program, "{{'<|start_header_id|>system<|end_header_id|>\\n\\n'}}") &&
        has(program, "{{'Cutting Knowledge Date: December 2023\\n'}}{{'Today Date: '+date_string+'\\n\\n'}}");
    const bool other_headers =
        count(program, "<|start_header_id|>") != count(program, "<|start_header_id|>'+message.role") +
                                                     count(program, "<|start_header_id|>assistant<|end_header_id|>");
    if (!found.dated_ && other_headers) return {};
    return found;
  }
  if (has(program, "{{bos_token+'[INST] '+content.strip()+' [/INST]'}}") &&
      has(program, "{{' '+content.strip()+' '+eos_token}}") &&
      has(program, "'<<SYS>>\\n'+system_message+'\\n<</SYS>>\\n\\n'+message.content") &&
      !has(program, "system_message='")) {
    found.family_ = Family::Llama2;
    return found;
  }
  if (has(program, "{{bos_token}}") && has(program, "{{'[INST] '+message.content+' [/INST]'}}") &&
      has(program, "{{message.content+eos_token}}") && !has(program, "system")) {
    found.family_ = Family::Mistral;
    return found;
  }
  return {};
}

ChatTemplate ChatTemplate::choose(std::string_view name, std::string_view model_template, SpecialTexts special) {
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    user_error("template: found '{}', expected one of {}", name, chat_template_names());
  }
  std::optional<ChatTemplate> own = recognise(model_template, special);
  if (name == "auto") {
    if (own) return *own;
    user_error("template: the model {}; name one with --template: {}",
               model_template.empty() ? "has no chat template" : "has a chat template of no family known here",
               chat_template_names());
  }
  ChatTemplate named;
  named.family_ = name == "chatml" || name == "qwen" ? Family::ChatML
                  : name == "llama3"                 ? Family::Llama3
                  : name == "llama2"                 ? Family::Llama2
                  : name == "mistral"                ? Family::Mistral
                                                     : Family::None;
  named.special_ = std::move(special);
  if (own && own->family_ == named.family_) named = *own;
  if (name == "qwen" && named.default_system_.empty()) named.default_system_ = kQwenSystem;
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

std::vector<Piece> ChatTemplate::render(std::span<const Message> messages, bool for_generation) const {
  std::vector<Piece> out;
  const bool system_first = !messages.empty() && messages[0].role == ChatRole::System;
  switch (family_) {
    case Family::None:
      for (const Message& m : messages) {
        const bool reply = m.role == ChatRole::Assistant;
        add(out, m.content + (reply ? special_.eos : ""), reply);
      }
      break;
    case Family::ChatML:
      if (opens_with_bos_) add(out, special_.bos, false);
      if (!default_system_.empty() && !system_first) {
        add(out, fmt::format("<|im_start|>system\n{}<|im_end|>\n", default_system_), false);
      }
      for (const Message& m : messages) {
        add(out, fmt::format("<|im_start|>{}\n", role_name(m.role)), false);
        add(out, m.content + "<|im_end|>", m.role == ChatRole::Assistant);
        add(out, "\n", false);
      }
      if (for_generation) add(out, "<|im_start|>assistant\n", false);
      break;
    case Family::Llama3:
      add(out, special_.bos, false);
      if (dated_) {
        add(out,
            fmt::format("<|start_header_id|>system<|end_header_id|>\n\n{}{}<|eot_id|>", kLlama3Dates,
                        system_first ? stripped(messages[0].content) : ""),
            false);
        if (system_first) messages = messages.subspan(1);
      }
      for (const Message& m : messages) {
        add(out, fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role_name(m.role)), false);
        add(out, fmt::format("{}<|eot_id|>", stripped(m.content)), m.role == ChatRole::Assistant);
      }
      if (for_generation) add(out, "<|start_header_id|>assistant<|end_header_id|>\n\n", false);
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
    system = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n", messages[0].content);
    messages = messages.subspan(1);
  }
  if (!llama2) add(out, special_.bos, false);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    const ChatRole expected = i % 2 == 0 ? ChatRole::User : ChatRole::Assistant;
    if (m.role != expected) {
      user_error(
          "template {}: found a message of role {}, expected user and assistant in turn{}: use --template chatml",
          name(), role_name(m.role), llama2 ? " after one system message at most" : "");
    }
    if (m.role == ChatRole::Assistant) {
      add(out, llama2 ? fmt::format(" {} {}", stripped(m.content), special_.eos) : m.content + special_.eos, true);
    } else if (llama2) {
      const std::string text = i == 0 ? system + m.content : m.content;
      add(out, fmt::format("{}[INST] {} [/INST]", special_.bos, stripped(text)), false);
    } else {
      add(out, fmt::format("[INST] {} [/INST]", m.content), false);
    }
  }
}

}  // namespace snug
