#include "data/thinking.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "data/records.h"
#include "format/jinja_json.h"

namespace snug {
namespace {

bool thinks(const Message& message) {
  if (message.role != ChatRole::Assistant) return false;
  return !message.thinking.empty() || thinking_bytes(message.content) > 0;
}

// Returns where turns begin: at the first message, and at each question behind a reply.
std::vector<size_t> turns_of(const Conversation& conversation) {
  std::vector<size_t> turns = {0};
  bool answered = false;
  for (size_t i = 0; i < conversation.size(); ++i) {
    if (conversation[i].role == ChatRole::User && answered) {
      turns.push_back(i);
      answered = false;
    }
    answered = answered || conversation[i].role == ChatRole::Assistant;
  }
  return turns;
}

// Returns the bytes of the parts of a conversation that end where its turns do.
uint64_t bytes_of_parts(const Conversation& conversation, const std::vector<size_t>& turns) {
  uint64_t bytes = 0, whole = 0;
  size_t turn = 1;
  for (size_t i = 0; i <= conversation.size(); ++i) {
    if (i == conversation.size() || (turn < turns.size() && turns[turn] == i)) {
      whole += bytes;
      ++turn;
    }
    if (i == conversation.size()) break;
    const Message& message = conversation[i];
    bytes += 256 + message.content.size() + message.thinking.size();
    for (const jinja::Value& call : message.calls) bytes += jinja::bytes_of(call);
  }
  return whole;
}

void drop_thinking(Message& message) {
  if (message.role != ChatRole::Assistant) return;
  message.thinking.clear();
  message.content = std::string(without_thinking(message.content));
}

}  // namespace

Thinking thinking_from_name(std::string_view name) {
  if (name == "keep") return Thinking::Keep;
  if (name == "drop") return Thinking::Drop;
  if (name == "last") return Thinking::Last;
  user_error("thinking: found '{}', expected keep, drop or last", name);
}

std::vector<Conversation> with_thinking(Conversation conversation, Thinking thinking) {
  std::vector<Conversation> out;
  const std::vector<size_t> turns = turns_of(conversation);
  const auto last = conversation.begin() + static_cast<std::ptrdiff_t>(turns.back());
  if (thinking == Thinking::Drop) std::for_each(conversation.begin(), last, drop_thinking);
  if (thinking != Thinking::Last || std::none_of(conversation.begin(), last, thinks)) {
    out.push_back(std::move(conversation));
    return out;
  }
  if (const uint64_t bytes = bytes_of_parts(conversation, turns); bytes > kMaxRecordBytes)
    user_error(
        "thinking: found {} turns, which become samples of {} MiB together, expected at most {}; drop or keep "
        "takes them as one",
        turns.size(), bytes >> 20, kMaxRecordBytes >> 20);
  for (size_t i = 0; i < turns.size(); ++i) {
    const size_t end = i + 1 < turns.size() ? turns[i + 1] : conversation.size();
    Conversation one(conversation.begin(), conversation.begin() + static_cast<std::ptrdiff_t>(end));
    for (size_t m = 0; m < turns[i]; ++m) one[m].loss = false;
    if (std::any_of(one.begin(), one.end(), [](const Message& message) { return message.carries_loss(); }))
      out.push_back(std::move(one));
  }
  if (out.empty()) out.push_back(std::move(conversation));
  return out;
}

}  // namespace snug
