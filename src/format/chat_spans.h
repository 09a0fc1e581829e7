// Finds which stretches of a rendered conversation carry loss.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/chat_values.h"

namespace snug {

// Holds what a template writes around messages.
struct ChatSurroundings {
  std::string prompt = {};                // the end of a text that asks for a reply
  std::vector<std::string> headers = {};  // texts before a reply, with what the template inserts there
  std::vector<std::string> ends = {};     // texts that end a turn
  std::string end_of_turn = {}, end_of_call = {};
  std::string eos = {};     // follows some templates' own ends, as a part of them
  bool open = false;        // nothing ends a reply: `ends` are the beginnings of next turns
  bool generation = false;  // generation blocks say what carries loss
};

// Says where a message stands in a text.
struct ChatSpan {
  size_t begin = 0, own_end = 0;  // of the message's own bytes
  size_t end = 0;                 // of its turn, if the template says so; else own_end
  bool found = false, ended = false;
  bool broken = false;  // other messages stand between its parts, or it is repeated
  ChatVariables::Part first = ChatVariables::Part::Content;  // the part with which it begins
};

std::vector<ChatSpan> spans_of(const jinja::Text& text, const ChatVariables& variables, size_t count,
                               const ChatSurroundings& around);

// Returns pieces of the text. `spans` are those of spans_of(), with the places of texts that left no byte. Throws
// UserError for messages that carry loss and are broken or within one another.
std::vector<Piece> pieces_of(const jinja::Text& text, const ChatVariables& variables, std::span<const Message> messages,
                             std::span<const ChatSpan> spans, const ChatSurroundings& around, bool for_generation);

// Returns whether the last message is a reply that carries loss and does not stand behind all that a prompt ends with:
// the template asks for it by more than it writes before it.
bool is_unasked(std::string_view text, std::span<const Message> messages, std::span<const ChatSpan> spans,
                const ChatSurroundings& around);

// Adds text to the last piece, or as a new piece if that one is of another kind; adds no empty text.
void add_piece(std::vector<Piece>& out, std::string_view text, bool loss = false, bool masked = false,
               float weight = 1);

}  // namespace snug
