// Chat templates: a conversation becomes the text that a chat model was trained on, with the parts a loss is taken on.
//
// Models carry their template as a Jinja program. It is not run here: the families below are written by hand, and a
// model's program is compared with those that are known (chat_programs.h), tag by tag: only its layout, its comments,
// its quotes and its default system text may be its own. So for every program that is recognised the text is byte for
// byte that of transformers' apply_chat_template, but for the date in Llama 3.1's.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  // Jinja text, empty if it has none. What varies within a family (the default system text, Llama 3.1's dates) is taken
  // from the model's own template if that is of the named family. UserError that lists the names for an unknown name,
  // and for auto if the model has no template or one that is of no family here. `owner`: whose template it is, for
  // messages.
  static ChatTemplate choose(std::string_view name, std::string_view model_template, SpecialTexts special,
                             std::string_view owner = "the model");

  // One of the names above, never auto.
  std::string_view name() const;
  // What stands before the first message when it is not a system message; empty for nothing.
  const std::string& default_system() const { return default_system_; }
  // Whether BOS comes by the tokenizer's habit (none) or is part of the rendered text or absent (all others).
  bool bos_by_habit() const { return family_ == Family::None; }
  // The special token that ends a reply.
  std::string end_of_turn() const;
  // The Jinja program by which transformers renders conversations as this does: the model's own where that was taken,
  // else one that choose() recognises as this template. Empty for none.
  const std::string& jinja() const { return jinja_; }
  // The texts that mark turns, as far as `is_token` says that they are no single tokens; "a bos_token" or "an
  // eos_token" where the template needs one and there is none. Empty: the tokenizer can ask by this template.
  std::vector<std::string> lacking(const std::function<bool(std::string_view)>& is_token) const;
  // Whether both render every conversation to the same text.
  bool renders_as(const ChatTemplate& other) const;

  // Pieces next to each other differ in `loss` or `masked`; tokenise each by itself, so that a prompt has the same
  // tokens in training as when it is generated from. `for_generation`: ends with the header of a reply to come.
  // UserError where the family's template refuses: llama2 and mistral want user and assistant in turn, mistral no
  // system message.
  //   chatml   <|im_start|>ROLE\nTEXT<|im_end|>\n each
  //   llama3   BOS, then <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|> each. Llama 3.1 and later open with
  //            a system message that holds two dates; "today" is always 26 Jul 2024, their own fallback, so that what a
  //            model sees does not depend on the day.
  //   llama2   BOS[INST] TEXT [/INST] REPLY EOS, the system text within the first turn, between <<SYS>> and <</SYS>>
  //   mistral  BOS, then [INST] TEXT [/INST]REPLYEOS each
  //   none     the texts one after another, EOS after each reply
  // chatml and mistral keep texts as they are, llama3 and llama2 strip white space at both ends.
  std::vector<Piece> render(std::span<const Message> messages, bool for_generation) const;

 private:
  enum class Family { None, ChatML, Llama3, Llama2, Mistral };

  static std::optional<ChatTemplate> recognise(std::string_view model_template, const SpecialTexts& special);
  void render_turns_in_pairs(std::span<const Message> messages, std::vector<Piece>& out) const;

  Family family_ = Family::None;
  std::string jinja_;
  std::string default_system_;
  bool opens_with_bos_ = false;  // chatml: a few models put BOS before the first message
  bool dated_ = false;           // llama3: the system message with dates of Llama 3.1 and later
  SpecialTexts special_;
};

// Every name choose() takes, for messages: "auto, chatml, ...".
std::string chat_template_names();

}  // namespace snug
