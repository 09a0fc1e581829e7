// Cuts text into the words that byte-pair merges never cross, exactly as the regular expressions of three model
// families do, without a regular-expression engine: one pass, no limits on length.
#pragma once

#include <optional>
#include <string_view>

#include "format/json.h"

namespace snug {

// The patterns known, by what first used them.
enum class WordPattern {
  Gpt2,    // GPT-2 and SmolLM2: also what ByteLevel's `use_regex` stands for
  Llama3,  // up to three digits a word
  Qwen2,   // as Llama3, digits one by one
};

// As tokenizer.json spells it.
std::string_view regex_of(WordPattern pattern);

class PreTokenizer {
 public:
  // From tokenizer.json's `pre_tokenizer`: ByteLevel with use_regex, alone or after Digits (individual), or Split by a
  // known pattern before ByteLevel without. UserError naming any other type, pattern or option.
  static PreTokenizer parse(const Json& json, const std::string& source);

  PreTokenizer(WordPattern pattern, bool single_digits) : pattern_(pattern), single_digits_(single_digits) {}

  // Calls visit(word) for each word in order; together they are the whole text, which is well-formed UTF-8.
  template <class Visit>
  void each_word(std::string_view text, Visit&& visit) const {
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, piece_end(text));
      for (size_t begin = 0; begin < piece.size();) {
        const size_t end = word_end(piece, begin);
        visit(piece.substr(begin, end - begin));
        begin = end;
      }
      text.remove_prefix(piece.size());
    }
  }

 private:
  // End of the part of a text that the pattern sees on its own.
  size_t piece_end(std::string_view text) const;
  size_t word_end(std::string_view piece, size_t begin) const;

  WordPattern pattern_;
  bool single_digits_;  // each numeric character is a piece of its own
};

}  // namespace snug
