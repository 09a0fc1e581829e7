// Defines Unicode as the `tokenizers` library sees it, whatever newer editions say: properties of code points (that
// library's tables, probed by scripts/make_unicode_tables.py), checked UTF-8, and canonical composition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

// Defines the properties of a code point: its general category in the lower 5 bits, in this order, and above them one
// bit each. The last two categories are snug's: control characters that are white space, and code points without a
// category.
enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cf,
  Cc,
  Co,
  WhiteControl,
  Unassigned,
};
constexpr uint8_t kNumeric = 32;      // what the Digits pre-tokeniser cuts out: a newer edition's \p{N}
constexpr uint8_t kWord = 64;         // \w, where added tokens ask for whole words
constexpr uint8_t kNormalizes = 128;  // may change, move or join under canonical composition

// Holds a set of categories, one bit each.
using Categories = uint32_t;
template <class... T>
constexpr Categories categories(T... category) {
  return ((Categories{1} << static_cast<unsigned>(category)) | ...);
}
constexpr Categories kLetter =
    categories(Category::Lu, Category::Ll, Category::Lt, Category::Lm, Category::Lo);  // \p{L}
constexpr Categories kMark = categories(Category::Mn, Category::Mc, Category::Me);     // \p{M}
constexpr Categories kNumber = categories(Category::Nd, Category::Nl, Category::No);   // \p{N}
constexpr Categories kPunctuation = categories(Category::Pc, Category::Pd, Category::Ps, Category::Pe, Category::Pi,
                                               Category::Pf, Category::Po);                                  // \p{P}
constexpr Categories kSymbol = categories(Category::Sm, Category::Sc, Category::Sk, Category::So);           // \p{S}
constexpr Categories kSpace = categories(Category::Zs, Category::Zl, Category::Zp, Category::WhiteControl);  // \s

uint8_t code_point_properties(char32_t code_point);
inline bool is_in(char32_t code_point, Categories set) { return set >> (code_point_properties(code_point) & 31) & 1; }

// Returns the byte offset of the first byte that belongs to no well-formed UTF-8 sequence (Unicode, table 3-7: no
// surrogates, no overlong forms, nothing above U+10FFFF); nothing if all of `text` is well-formed.
std::optional<size_t> find_invalid_utf8(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  uint8_t bytes = 0;  // of its UTF-8, 1 to 4
};
// Returns the code point that begins at byte `at`. `text` is well-formed from there on, and longer than `at`.
CodePoint decode_utf8(std::string_view text, size_t at);
// Holds the properties of a code point, and the length of its UTF-8.
struct Character {
  uint8_t properties = 0;
  uint8_t bytes = 0;
  bool in(Categories set) const { return set >> (properties & 31) & 1; }
};
Character character_at(std::string_view text, size_t at);
// Returns where the code point begins that ends before byte `end`, which is not 0.
size_t start_of_last(std::string_view text, size_t end);
// Appends the UTF-8 of a code point that is no surrogate.
void append_utf8(char32_t code_point, std::string& out);

// Returns normalisation form C of well-formed UTF-8, in linear time except for sorting runs of combining marks.
std::string compose_nfc(std::string_view text);

}  // namespace snug
