// Cuts text into the words that byte-pair merges never cross, exactly as the `tokenizers` library does.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"
#include "format/split_regex.h"
#include "format/word_scanner.h"

namespace snug {

// Says what stands before a text that is encoded: nothing, an added token, or text that it continues. A prefix ("▁")
// that begins every stretch, or the first one, is left out within a stretch.
enum class Before { Nothing, Token, Text };

class PreTokenizer {
 public:
  // Reads tokenizer.json's `pre_tokenizer`, which may be null: Split, Digits, Metaspace and ByteLevel, which is the
  // last one, alone or in a Sequence, where each cuts the pieces of the one before. Throws UserError naming any other
  // type, option or part of a pattern.
  static PreTokenizer parse(const Json& json, const std::string& source);

  // Calls visit(word) for each word in order. `text` is well-formed UTF-8; together the words are all of it, unless
  // there are prefixes, spaces that are written as another character, or pieces that are removed.
  using Visit = std::function<void(std::string_view)>;
  void each_word(std::string_view text, Before before, const Visit& visit) const;

  // Returns whether words are then taken byte by byte, in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }

 private:
  friend class WordCutter;
  // Says what becomes of the matches of a pattern.
  enum class Behavior { Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous };
  enum class Prepend { Never, First, Always };
  enum class Kind {
    Words,      // cut by one of the patterns with a scanner
    Regex,      // cut where an expression matches
    Literal,    // cut where a text stands
    Digits,     // cut at numeric characters
    Metaspace,  // spaces are written as `literal`, a piece may begin with one more
    AddSpace,   // a piece begins with a space
  };
  struct Stage {
    Kind kind;
    WordPattern words{};
    std::shared_ptr<const SplitRegex> regex{};
    std::string literal{};
    Behavior behavior = Behavior::Isolated;
    bool invert = false;
    Prepend prepend = Prepend::Never;
  };
  void add_split(const JsonObject& json);
  void add_metaspace(const JsonObject& json);
  void add(const JsonObject& json);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

// Returns the text with each `from`, which is not empty, replaced by `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace snug
