// Normalises a text before it is cut into words: tokenizer.json's `normalizer`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"
#include "format/pretokenizer.h"

namespace snug {

class Normalizer {
 public:
  // Reads nothing, NFC, Prepend, Replace (of a text) or Strip, alone or in Sequences. Throws UserError naming any other
  // type or option.
  static Normalizer parse(const JsonObject& file, const std::string& source);
  // Returns SentencePiece's normaliser: "▁" for every space, and with `prefix` one before every stretch. With
  // `collapses` spaces at its ends are left out, and of others in a row all but one.
  static Normalizer of_sentencepiece(bool prefix, bool collapses = false);

  bool changes_nothing() const { return steps_.empty(); }
  // Returns the normalised text of a stretch between two added tokens; the prefix of a stretch is left out if it
  // continues a text before it. `text` is well-formed UTF-8. Sets `loses_start` if its first character is left out.
  std::string apply(std::string_view text, Before before = Before::Nothing, bool* loses_start = nullptr) const;

 private:
  enum class Kind { ComposeNfc, Prepend, Replace, Strip, CollapseSpaces };
  struct Step {
    Kind kind;
    std::string from{}, to{};
    bool left = false, right = false;
  };
  void add(const JsonObject& json, const std::string& source, int depth);

  std::vector<Step> steps_;
};

}  // namespace snug
