// Chat templates: a conversation becomes the text that a chat model was trained on, with the parts a loss is taken on.
//
// Models carry their template as a Jinja program, which is run (jinja.h): the text is byte for byte that of
// transformers' apply_chat_template, but for the day's date. Which bytes came from which message the interpreter
// remembers. What stands around them (headers, ends of turns) is found out once, from short conversations.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/chat_message.h"
#include "format/chat_spans.h"
#include "format/jinja.h"

namespace snug {

// How the tokenizer spells its two special tokens; empty where it has none.
struct SpecialTexts {
  std::string bos, eos;
};

// What a template leaves out of a conversation that teaches, though it need not show it.
struct LeftOut {
  int64_t thoughts = 0;  // of replies that carry loss
  int64_t texts = 0;     // of other messages, such as a system text
};

class ChatTemplate {
 public:
  // By name: chatml, qwen, llama3, llama2, mistral, none, or auto for the model's own. `model_template` is the model's
  // Jinja text, empty if it has none. A name takes the model's own template where its turns look like those of the
  // name, for its details (the default system text, Llama 3.1's dates). UserError that lists the names for an unknown
  // name and for auto if the model has no template; and for a template that does not parse, or that does not render a
  // question and a reply. `owner`: whose template it is, for messages.
  static ChatTemplate choose(std::string_view name, std::string_view model_template, SpecialTexts special,
                             std::string_view owner = "the model");

  // One of the names above but auto and qwen, whose turns the template's look like; "own" where they are like none.
  const std::string& name() const { return name_; }
  // What stands before the first message when it is not a system message; empty for nothing.
  const std::string& default_system() const { return default_system_; }
  // Whether BOS comes by the tokenizer's habit (none) or is part of the rendered text or absent (all others).
  bool bos_by_habit() const { return !program_; }
  // The text of the token that ends a reply; empty where none can be told. Where the template puts nothing behind a
  // reply, the token that begins the next turn.
  const std::string& end_of_turn() const { return around_.end_of_turn; }
  // The text of the token that ends a call, likewise; empty where it has no calls.
  const std::string& end_of_call() const { return around_.end_of_call; }
  // Whether generation blocks of the template say what of replies carries loss.
  bool says_loss() const { return around_.generation; }
  // The Jinja program by which transformers renders conversations as this does. Empty for none.
  const std::string& jinja() const { return jinja_; }
  // The texts <|...|> that mark turns, as far as `is_token` says that they are no single tokens; "a bos_token" or "an
  // eos_token" where the template fails without one and there is none. Empty: the tokenizer can ask by this template.
  std::vector<std::string> lacking(const std::function<bool(std::string_view)>& is_token) const;
  // Whether both render short conversations to the same text.
  bool renders_as(const ChatTemplate& other) const { return probes_ == other.probes_; }

  // Pieces next to each other differ in `loss` or `masked`; tokenise each by itself, so that a prompt has the same
  // tokens in training as when it is generated from. `for_generation`: ends with the header of a reply to come.
  // A message's piece is its text as the template renders it, with what the template puts between its parts, white
  // space that stands between the reply's header and it, and the token that ends the turn. What a template inserts
  // before a reply (an empty <think>) belongs to it only where the reply itself has thinking; what it writes around
  // calls does. Where it has generation blocks, these say what of replies carries loss. UserError where the template
  // refuses, and where it leaves out a text that carries loss, tools, calls, or what tools say. "Today" is always 26
  // Jul 2024, so that what a model sees does not depend on the day. none: the texts one after another, EOS after each
  // reply.
  std::vector<Piece> render(std::span<const Message> messages, bool for_generation,
                            std::span<const jinja::Value> tools = {}, LeftOut* left_out = nullptr) const;

 private:
  // A text and what its bytes came from.
  struct Rendering {
    jinja::Text text;
    ChatVariables variables;
  };

  static ChatTemplate of_program(std::string_view program, SpecialTexts special, std::string_view source);
  Rendering run(std::span<const Message> messages, std::span<const jinja::Value> tools, bool for_generation,
                const SpecialTexts& special) const;
  Rendering run(std::span<const Message> messages, std::span<const jinja::Value> tools, bool for_generation,
                const SpecialTexts& special, bool empty) const;
  std::optional<Rendering> probe(std::span<const Message> messages, bool for_generation,
                                 const SpecialTexts& special) const;
  void look_around(std::string_view source);
  void find_what_is_needed(std::string_view source);
  void find_ends(std::string_view next, bool always_asks);
  void find_forms(const SpecialTexts& special);
  void find_calls(const SpecialTexts& special);
  void add_header(std::string_view text, const ChatSpan& question, const ChatSpan& reply);
  void add_end(const std::string& end);
  void find_empty(std::span<const Message> messages, std::span<const jinja::Value> tools, bool for_generation,
                  const Rendering& rendered, std::vector<ChatSpan>& spans) const;
  void refuse_beside_texts(std::span<const Message> messages, std::span<const jinja::Value> tools) const;
  void refuse_left_out(std::span<const Message> messages, std::span<const jinja::Value> tools,
                       const Rendering& rendered, LeftOut* left_out) const;

  std::string name_ = "none";
  std::optional<JinjaTemplate> program_ = {};
  std::string jinja_ = {};
  SpecialTexts special_ = {};
  bool built_in_ = false;  // it has a name, and is not the model's own
  // Found in short conversations: what stands around messages, between a question and its reply and behind it, how
  // thoughts and calls are given, all texts that mark turns.
  ChatSurroundings around_ = {};
  ChatForms forms_ = {};
  std::string between_ = {}, behind_ = {}, default_system_ = {};
  std::vector<std::string> markers_ = {}, probes_ = {};
  bool needs_bos_ = false, needs_eos_ = false;
};

// Every name choose() takes, for messages: "auto, chatml, ...".
std::string chat_template_names();

}  // namespace snug
