// Renders chat templates: a conversation becomes the text on which a chat model was trained, with the parts that carry
// loss.
//
// Models carry their template as a Jinja program, which is run (jinja.h): the text is byte for byte that of
// transformers' apply_chat_template, except for the current date. The interpreter remembers which bytes came from which
// message. What stands around them (headers, ends of turns) is found out once, from short conversations.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/chat_message.h"
#include "format/chat_spans.h"
#include "format/jinja.h"

namespace snug {

// Holds the spelling of the tokenizer's special tokens; empty for those that it lacks.
struct SpecialTexts {
  std::string bos = {}, eos = {};
  std::map<std::string, std::string> others = {};  // what the tokenizer names besides, by name: "pad_token"
};

// Counts what a template leaves out of a conversation that teaches, though it need not show it.
struct LeftOut {
  int64_t thoughts = 0;       // of replies that carry loss
  int64_t last_thoughts = 0;  // of them, those behind the last question
  int64_t texts = 0;          // of other messages, such as a system text
  int64_t unasked = 0;        // conversations whose last reply does not stand behind all that a prompt ends with

  LeftOut& operator+=(const LeftOut& more) {
    thoughts += more.thoughts;
    last_thoughts += more.last_thoughts;
    texts += more.texts;
    unasked += more.unasked;
    return *this;
  }
};

class ChatTemplate {
 public:
  // Chooses a template by name: chatml, qwen, llama3, llama2, mistral, none, or auto for the model's own.
  // `model_template` is the model's Jinja text, empty if it has none. A name takes the model's own template if its
  // turns look like those of the name, for its details (the default system text, Llama 3.1's dates). Throws UserError
  // that lists the names for an unknown name and for auto if the model has no template; and for a template that does
  // not parse, or that does not render a question and a reply. `owner` says whose template it is, for messages;
  // `for_tools` is its template for conversations with tools, empty if that is none of its own.
  static ChatTemplate choose(std::string_view name, std::string_view model_template, SpecialTexts special,
                             std::string_view owner = "the model", std::string_view for_tools = "");

  // Returns the one of the names above, except auto and qwen, whose turns look like the template's; "own" if none does.
  const std::string& name() const { return name_; }
  // Returns what stands before the first message if that is not a system message; may be empty.
  const std::string& default_system() const { return default_system_; }
  // Returns whether BOS comes by the tokenizer's habit (none), rather than in the rendered text or not at all (all
  // others).
  bool bos_by_habit() const { return !program_; }
  // Returns the text of the token that ends a reply; empty if it cannot be told. If the template puts nothing behind a
  // reply, it is the token that begins the next turn.
  const std::string& end_of_turn() const { return around_.end_of_turn; }
  // Returns the text of the token that ends a call; empty if it cannot be told, or if the template has no calls.
  const std::string& end_of_call() const { return around_.end_of_call; }
  // Returns the end of a text that asks for a reply; empty if the template asks by nothing that a question has not.
  const std::string& prompt() const { return around_.prompt; }
  // Returns whether generation blocks of the template say which parts of replies carry loss.
  bool says_loss() const { return around_.generation; }
  // Returns the Jinja program by which transformers renders conversations as this does; empty for none.
  const std::string& jinja() const { return jinja_; }
  // Returns the template of conversations with tools where that is another one, else null.
  const ChatTemplate* for_tools() const { return for_tools_.get(); }
  // Returns the texts <|...|> that mark turns and of which `is_token` says that they are no single tokens; "a
  // bos_token" or "an eos_token" if the template fails without one and there is none. If empty, the tokenizer can ask
  // by this template.
  std::vector<std::string> lacking(const std::function<bool(std::string_view)>& is_token) const;
  // Returns whether both render short conversations to equal text.
  bool renders_as(const ChatTemplate& other) const {
    if (probes_ != other.probes_ || !for_tools_ != !other.for_tools_) return false;
    return !for_tools_ || for_tools_->renders_as(*other.for_tools_);
  }

  // Renders a conversation. Pieces next to each other differ in `loss`, `masked` or `weight`; tokenise each by itself,
  // so that a prompt has equal tokens in training and in generation. With `for_generation` the text ends with the
  // header of a reply to come. A message's piece is its text as the template renders it, with what the template puts
  // between its parts, white space between the reply's header and it, and the token that ends the turn. What a template
  // inserts before a reply (an empty <think>) belongs to it only if the reply itself has thinking; what it writes
  // around calls always does. If the template has generation blocks, these say which parts of replies carry loss.
  // Throws UserError if the template refuses, and if it leaves out a text that carries loss, tools, calls, or what
  // tools say. "Today" is always 26 Jul 2024, so that what a model sees does not depend on the day. The template none
  // gives the texts one after another, with EOS after each reply.
  std::vector<Piece> render(std::span<const Message> messages, bool for_generation,
                            std::span<const jinja::Value> tools = {}, LeftOut* left_out = nullptr) const;

 private:
  // Holds a text and what its bytes came from.
  struct Rendering {
    jinja::Text text;
    ChatVariables variables;
  };

  static ChatTemplate of_program(std::string_view program, SpecialTexts special, std::string_view source);
  Rendering run(std::span<const Message> messages, std::span<const jinja::Value> tools, bool for_generation,
                const SpecialTexts& special) const;
  Rendering run(std::span<const Message> messages, std::span<const jinja::Value> tools, bool for_generation,
                const SpecialTexts& special, bool empty) const;
  Rendering run_short(std::span<const Message> messages, bool for_generation, const SpecialTexts& special) const;
  std::optional<Rendering> probe(std::span<const Message> messages, bool for_generation,
                                 const SpecialTexts& special) const;
  void add_for_tools(std::string_view program, std::string_view owner);
  void look_around(std::string_view source);
  void find_what_is_needed(std::string_view source);
  void find_ends(std::string_view next, bool always_asks);
  void find_forms(const SpecialTexts& special);
  void find_calls(const SpecialTexts& special);
  std::optional<Rendering> probe_calls(std::span<const Message> messages, const SpecialTexts& special) const;
  void add_header(std::string_view text, const ChatSpan& question, const ChatSpan& reply);
  void add_end(const std::string& end);
  void find_empty(std::span<const Message> messages, std::span<const jinja::Value> tools, bool for_generation,
                  const Rendering& rendered, std::vector<ChatSpan>& spans) const;
  void refuse_beside_texts(std::span<const Message> messages, std::span<const jinja::Value> tools) const;
  void refuse_thinking(std::span<const Message> messages) const;
  void refuse_left_out(std::span<const Message> messages, std::span<const jinja::Value> tools,
                       const Rendering& rendered, LeftOut* left_out) const;

  std::string name_ = "none";
  std::optional<JinjaTemplate> program_ = {};
  std::string jinja_ = {};
  SpecialTexts special_ = {};
  bool built_in_ = false;  // it has a name, and is not the model's own
  bool probing_ = false;   // while short conversations are rendered
  // Hold what short conversations show: what stands around messages, between a question and its reply and behind it,
  // how thoughts and calls are given, and all texts that mark turns.
  std::shared_ptr<const ChatTemplate> for_tools_ = {};
  std::string tools_refusal_ = {};  // why that template cannot be used
  ChatSurroundings around_ = {};
  ChatForms forms_ = {};
  std::string between_ = {}, behind_ = {}, default_system_ = {};
  std::vector<std::string> markers_ = {}, probes_ = {};
  bool needs_bos_ = false, needs_eos_ = false, needs_tools_ = false;
};

// Returns every name that choose() takes, for messages: "auto, chatml, ...".
std::string chat_template_names();

}  // namespace snug
