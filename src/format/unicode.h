// Unicode as the `tokenizers` library sees it, whatever newer editions say: properties of code points (its own tables,
// probed by scripts/make_unicode_tables.py), checked UTF-8, and canonical composition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

// Properties of a code point, one bit each.
constexpr uint8_t kLetter = 1;       // \p{L} of its regular expressions
constexpr uint8_t kNumber = 2;       // \p{N} of its regular expressions
constexpr uint8_t kSpace = 4;        // \s
constexpr uint8_t kNumeric = 8;      // what its Digits pre-tokeniser cuts out: a newer edition's \p{N}
constexpr uint8_t kWord = 16;        // \w, where added tokens ask for whole words
constexpr uint8_t kNormalizes = 32;  // may change, move or join under canonical composition

uint8_t code_point_properties(char32_t code_point);

// Byte offset of the first byte that belongs to no well-formed UTF-8 sequence (Unicode, table 3-7: no surrogates, no
// overlong forms, nothing above U+10FFFF); nothing if all of `text` is well-formed.
std::optional<size_t> find_invalid_utf8(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  uint8_t bytes = 0;  // of its UTF-8, 1 to 4
};
// The code point that begins at byte `at`. `text` is well-formed from there on, and longer than `at`.
CodePoint decode_utf8(std::string_view text, size_t at);
// Properties of the code point that begins at byte `at`, and its length.
struct Character {
  uint8_t properties = 0;
  uint8_t bytes = 0;
};
Character character_at(std::string_view text, size_t at);
// Where the code point begins that ends before byte `end`, which is not 0.
size_t start_of_last(std::string_view text, size_t end);
// Appends the UTF-8 of a code point that is no surrogate.
void append_utf8(char32_t code_point, std::string& out);

// Normalisation form C of well-formed UTF-8. Linear but for sorting runs of combining marks.
std::string compose_nfc(std::string_view text);

}  // namespace snug
