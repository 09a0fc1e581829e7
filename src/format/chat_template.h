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

#include "format/jinja.h"

namespace snug {

enum class ChatRole { System, User, Assistant };

struct Message {
  ChatRole role = ChatRole::User;
  std::string content;
  std::optional<bool> loss = {};  // whether it carries loss, where its record says so; replies do otherwise
};

// A stretch of rendered text. Loss: a message that carries it with the end-of-turn token after it, not the header
// before it and not the newline that some families put behind it. Masked: a message whose record says that it carries
// none, whatever is trained on.
struct Piece {
  std::string text;
  bool loss = false;
  bool masked = false;
  bool operator==(const Piece&) const = default;
};

// How the tokenizer spells its two special tokens; empty where it has none.
struct SpecialTexts {
  std::string bos, eos;
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
  const std::string& end_of_turn() const { return end_of_turn_; }
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
  // before a reply (an empty <think>) belongs to it only where the reply itself has thinking. UserError where the
  // template refuses, and where it leaves out a text that carries loss. "Today" is always 26 Jul 2024, so that what a
  // model sees does not depend on the day. none: the texts one after another, EOS after each reply.
  std::vector<Piece> render(std::span<const Message> messages, bool for_generation) const;

 private:
  struct Span {
    size_t begin = 0, end = 0;
    bool found = false, broken = false;  // broken: other messages stand between its parts
  };

  static ChatTemplate of_program(std::string_view program, SpecialTexts special, std::string_view source);
  jinja::Text text_of(std::span<const Message> messages, bool for_generation, const SpecialTexts& special) const;
  void look_around(std::string_view source);
  void find_what_is_needed(std::string_view source);
  std::vector<Span> spans_of(const jinja::Text& text, size_t count) const;
  void find_empty(std::span<const Message> messages, bool for_generation, const jinja::Text& text,
                  std::vector<Span>& spans) const;
  Span with_surroundings(std::string_view text, Span span, size_t from, const Message& message) const;

  std::string name_ = "none";
  std::optional<JinjaTemplate> program_ = {};
  std::string jinja_ = {};
  SpecialTexts special_ = {};
  // Found in short conversations: what a prompt ends with, what stands between a question and its reply and behind it,
  // what ends a turn, all texts that mark turns.
  std::string prompt_ = {}, between_ = {}, behind_ = {}, end_of_turn_ = {}, default_system_ = {};
  std::vector<std::string> markers_ = {}, probes_ = {};
  bool needs_bos_ = false, needs_eos_ = false;
};

// Every name choose() takes, for messages: "auto, chatml, ...".
std::string chat_template_names();

}  // namespace snug
