// Which stretches of a rendered conversation carry loss.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/chat_values.h"

namespace snug {

// What a template writes around messages.
struct ChatSurroundings {
  std::string prompt = {};                // what a text ends with that asks for a reply
  std::vector<std::string> headers = {};  // what stands before a reply, with what the template inserts there
  std::vector<std::string> ends = {};     // what ends a turn
  std::string end_of_turn = {}, end_of_call = {};
  std::string eos = {};     // stands behind some templates' own ends, as a part of them
  bool open = false;        // nothing ends a reply: `ends` are what next turns begin with
  bool generation = false;  // generation blocks say where loss lies
};

// Where a message stands in a text.
struct ChatSpan {
  size_t begin = 0, own_end = 0;  // of the message's own bytes
  size_t end = 0;                 // of its turn, where the template says so; own_end otherwise
  bool found = false, ended = false;
  bool broken = false;  // other messages stand between its parts, or it is repeated
  ChatVariables::Part first = ChatVariables::Part::Content;  // what it begins with
};

std::vector<ChatSpan> spans_of(const jinja::Text& text, const ChatVariables& variables, size_t count,
                               const ChatSurroundings& around);

// Pieces of the text. `spans` are those of spans_of(), with the places of texts that left no byte. UserError for
// messages that carry loss and are broken or within one another.
std::vector<Piece> pieces_of(const jinja::Text& text, const ChatVariables& variables, std::span<const Message> messages,
                             std::span<const ChatSpan> spans, const ChatSurroundings& around, bool for_generation);

// Adds text to the last piece, or as a piece of its own where that one is another kind; nothing where it is empty.
void add_piece(std::vector<Piece>& out, std::string_view text, bool loss = false, bool masked = false);

}  // namespace snug
