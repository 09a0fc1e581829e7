// Gives a conversation as the variables that a chat template reads, and says from what each byte that prints them came.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/chat_message.h"
#include "format/jinja.h"

namespace snug {

// Says how a template wants what models write in different forms; this is found out once, from short conversations.
struct ChatForms {
  std::string thinking_key = {};    // of a message: "reasoning_content"; empty: the template reads none
  bool thinking_in_content = true;  // <think> in a reply is recognised, or left as it is
  bool opens_thinking = false;      // of <think>...</think> in a reply it writes the <think> itself
  bool writes_thinking = false;     // of a reply, in its key or its content
  bool arguments_as_object = true;  // of a call
  bool arguments_as_text = false;   // a text of JSON, which is written as it stands
};

class ChatVariables {
 public:
  enum class Part : uint8_t { Content, Thinking, Call, Arguments, Other, Tool };
  struct Source {
    size_t message = 0;  // for Tool: the number of the tool
    Part part = Part::Content;
    size_t index = 0;  // the number of the call in the message
  };

  // With `empty`, null content is given as an empty text. It refers to none of its arguments. Throws UserError for
  // arguments that the forms cannot write.
  ChatVariables(std::span<const Message> messages, std::span<const jinja::Value> tools, const ChatForms& forms,
                bool empty = false);

  // Returns the variables; `others` are texts of special tokens besides BOS and EOS, by name.
  JinjaTemplate::Variables variables(bool for_generation, std::string_view bos, std::string_view eos,
                                     const std::map<std::string, std::string>& others) const;
  // Returns the source of a mark; null for bytes of the template itself.
  const Source* source(jinja::Mark mark) const {
    const size_t number = mark & ~jinja::kGenerated;
    return number == 0 ? nullptr : &sources_[number - 1];
  }
  size_t count() const { return sources_.size(); }
  // Returns the bytes of all texts, for limits.
  uint64_t bytes() const { return bytes_; }

 private:
  jinja::Mark mark(Source source);
  jinja::Value content(const Message& message, size_t at, const ChatForms& forms, bool empty, std::string& thinking);
  jinja::Value call(const jinja::Value& whole, size_t message, size_t index, const ChatForms& forms);

  jinja::Value messages_, tools_ = jinja::Value::none();
  std::vector<Source> sources_;
  uint64_t bytes_ = 0;
};

}  // namespace snug
