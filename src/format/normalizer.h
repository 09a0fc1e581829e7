// What is done with a text before it is cut into words: tokenizer.json's `normalizer`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"
#include "format/pretokenizer.h"

namespace snug {

class Normalizer {
 public:
  // Of nothing, NFC, Prepend, Replace (of a text), Strip, alone or in Sequences. UserError naming any other type or
  // option.
  static Normalizer parse(const JsonObject& file, const std::string& source);
  // SentencePiece's: "▁" for every space, and where `prefix` is set one before every stretch. Where `collapses` is set
  // spaces at its ends are left out, and of others in a row all but one.
  static Normalizer of_sentencepiece(bool prefix, bool collapses = false);

  bool changes_nothing() const { return steps_.empty(); }
  // The text of a stretch between two added tokens; what a stretch begins with is left out where it goes on from a text
  // before it. `text` is well-formed UTF-8.
  std::string apply(std::string_view text, Before before = Before::Nothing) const;

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
