// Runs the regular expressions by which tokenizers cut texts, in the part of Oniguruma's syntax that their files use:
// literals, sets ([...], \s \S \d \D \p{L} and other categories, .), groups with alternatives, (?i:...) over ASCII, the
// quantifiers ? * + {m,n} and possessive ones, the lookaheads (?!x) and (?=x) for one character, and $. Characters have
// the properties that the `tokenizers` library gives them. A match is found in time linear in the text, except for
// groups that are repeated without end, and the time for all matches of a text is bounded.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "format/char_set.h"

namespace snug {

class SplitRegex {
 public:
  // `fail` is called with what is expected if the expression has something that is not supported, and does not return:
  // expressions that are broken, lazy, look behind, refer back, or could match an empty text.
  using Fail = std::function<void(const std::string& expected)>;
  SplitRegex(std::string_view expression, const Fail& fail);

  // Holds memory for find(), reused from match to match. Each thread has its own.
  struct Scratch {
    struct Resume {
      uint32_t instruction;
      size_t at, low;  // a greedy run may give characters back down to `low`
    };
    std::vector<Resume> stack;
    std::unordered_set<uint64_t> seen;   // states that were tried and failed
    size_t steps = 0, steps_before = 0;  // of this search, and of those before it in this text
  };
  // Returns the leftmost match that begins at or behind `from`, by the preferences of a backtracking engine. `text` is
  // well-formed UTF-8. Throws UserError if it takes too long.
  std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from, Scratch& scratch) const;

 private:
  friend class SplitRegexCompiler;
  enum class Kind : uint8_t {
    One,       // a character of the set
    Run,       // as many characters of the set as there are, which it may give back
    Skip,      // as Run, but all are kept
    Optional,  // at most one character of the set, kept
    Fork,      // goes on with what follows, or else at `target`
    Jump,      // goes on at `target`
    Ahead,     // a character of the set comes next
    NotAhead,  // no character of the set comes next
    LineEnd,   // the end of the text, or a newline comes next
    Match,
  };
  struct Instruction {
    Kind kind;
    uint32_t set = 0, target = 0;
  };

  bool may_begin(uint32_t instruction, char32_t ascii) const;
  bool may_fail(uint32_t instruction) const;
  std::optional<size_t> match(uint32_t start, std::string_view text, size_t at, Scratch& scratch) const;
  bool is_new(uint32_t instruction, bool in_run, size_t at, Scratch& scratch) const;

  std::string expression_;
  std::vector<CharSet> sets_;
  std::vector<Instruction> code_;
  std::vector<uint32_t> starts_;             // first instructions of the alternatives
  std::array<uint64_t, 0x80> candidates_{};  // the alternatives that may begin with an ASCII character, one bit each
  bool repeats_groups_ = false;              // without end, so that remembering states could change what is preferred
};

}  // namespace snug
