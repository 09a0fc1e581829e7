// Holds what is said in a conversation, and the stretches of text that it becomes.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "format/jinja_value.h"

namespace snug {

enum class ChatRole { System, User, Assistant, Tool, Developer };

constexpr std::string_view name_of(ChatRole role) {
  switch (role) {
    case ChatRole::System:
      return "system";
    case ChatRole::User:
      return "user";
    case ChatRole::Assistant:
      return "assistant";
    case ChatRole::Tool:
      return "tool";
    case ChatRole::Developer:
      return "developer";
  }
  return "";
}

// Holds one message. Values belong to one thread, and so does a message that has some.
struct Message {
  ChatRole role = ChatRole::User;
  std::string content = {};
  std::optional<bool> loss = {};                   // whether it carries loss, if its record says so; else replies do
  std::string role_name = {};                      // if the record has another name for the role: "function"
  bool no_content = false;                         // the record has null in place of the content
  std::string thinking = {};                       // of a reply, besides its content
  std::string thinking_key = "reasoning_content";  // the record's key of it, for messages
  std::vector<jinja::Value> calls = {};            // of a reply: {"function": {"name": ..., "arguments": ...}, ...}
  std::vector<std::pair<std::string, jinja::Value>> others = {};  // more keys for the template: "tool_call_id"
  float weight = 1;                                               // of its tokens' loss

  bool carries_loss() const { return loss.value_or(role == ChatRole::Assistant); }
  std::string_view name_of_role() const { return role_name.empty() ? name_of(role) : std::string_view(role_name); }
};

// Holds a stretch of rendered text. `loss` marks a message that carries loss with the end-of-turn token after it,
// without the header before it and the newline that some families put behind it. `masked` marks a message whose record
// says that it carries none, whatever is trained on. `weight` is a message's.
struct Piece {
  std::string text;
  bool loss = false;
  bool masked = false;
  float weight = 1;
  bool operator==(const Piece&) const = default;
};

// Keys under which a reply has its thinking besides its content.
inline constexpr std::array<std::string_view, 3> kThinkingKeys = {"reasoning_content", "thinking", "reasoning"};

// Returns how many bytes of a reply are its thinking: all up to </think>, since some prompts have <think> already.
inline size_t thinking_bytes(std::string_view content) {
  constexpr std::string_view kEnd = "</think>";
  const size_t at = content.find(kEnd);
  return at == std::string_view::npos ? 0 : at + kEnd.size();
}

// Returns a reply without its thinking and the white space behind that.
inline std::string_view without_thinking(std::string_view content) {
  const size_t thinking = thinking_bytes(content);
  if (thinking == 0) return content;
  content.remove_prefix(thinking);
  return content.substr(white_before(content));
}

}  // namespace snug
