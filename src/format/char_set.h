// Holds sets of characters as regular expressions write them: categories, ranges, and their complement.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "format/unicode.h"

namespace snug {

class CharSet {
 public:
  void add(Categories categories) { parts_.push_back({categories, false}); }
  // Adds all characters that are in none of the categories.
  void add_all_but(Categories categories) { parts_.push_back({categories, true}); }
  void add(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void negate() { negated_ = !negated_; }
  // Prepares the set for look-ups. It must be called once, when everything is added.
  void finish();

  bool contains(char32_t code_point) const;
  // Returns the bytes of the character at `at` if it is in the set, else 0; 0 at the end of the text, which is
  // well-formed.
  size_t step(std::string_view text, size_t at) const {
    if (at >= text.size()) return 0;
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) return ascii_[byte / 64] >> byte % 64 & 1;
    return step_beyond_ascii(text, at);
  }
  // Returns the end of the run of characters of the set that begins at `at`.
  size_t skip(std::string_view text, size_t at) const {
    while (const size_t bytes = step(text, at)) at += bytes;
    return at;
  }

 private:
  struct Part {
    Categories categories;
    bool all_but;
  };
  bool contains(char32_t code_point, uint8_t properties) const;
  size_t step_beyond_ascii(std::string_view text, size_t at) const;

  std::vector<Part> parts_;
  std::vector<std::pair<char32_t, char32_t>> ranges_;  // in order and apart, once finished
  Categories categories_ = 0;                          // of all parts
  bool negated_ = false;
  std::array<uint64_t, 2> ascii_{};
};

}  // namespace snug
