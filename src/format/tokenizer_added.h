// Finds added tokens: texts that are cut out as tokens of their own before anything else is done with a text.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace snug {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // left out by a decoder that skips special tokens
  bool normalized = false;   // searched in normalised text, and normalised itself
  bool single_word = false;  // not found beside a word character
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
};

// Holds a part of a text: an added token, or the text between two.
struct TextPart {
  std::string_view text;  // empty for a token
  std::optional<int32_t> token;
};

// Finds added tokens in a text, the leftmost first and of those the longest. Immutable once filled.
class AddedTokenFinder {
 public:
  // Adds a token. `pattern` is what to look for, not empty. Throws UserError if another token has this pattern or it is
  // longer than 1024 bytes; `source` is the file's name for messages.
  void insert(const AddedToken& token, const std::string& pattern, std::string_view source);

  bool empty() const { return ends_.empty(); }
  // Returns the parts of `text`, of which no text is empty. Special tokens are text unless `parse_special`.
  std::vector<TextPart> split(std::string_view text, bool parse_special) const;

 private:
  struct Match {
    size_t end = 0;
    const AddedToken* token = nullptr;  // null: no token begins here
  };
  Match longest_at(std::string_view text, size_t begin) const;

  // Holds a trie. Node 0 is the root; a step is found by node * 256 + byte.
  std::unordered_map<uint64_t, uint32_t> steps_;
  std::unordered_map<uint32_t, AddedToken> ends_;  // by the node at which the pattern ends
  std::bitset<256> first_bytes_;
  uint32_t nodes_ = 1;
};

}  // namespace snug
