#include "format/word_scanner.h"

#include <array>

#include "base/error.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr Categories kNoOther = kLetter | kNumber | kSpace;  // [^\s\p{L}\p{N}]: none of these

// Lists the expressions, by WordPattern.
constexpr std::array<std::string_view, 3> kRegexes{
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)",
};

bool is_newline(char c) { return c == '\r' || c == '\n'; }

bool is_in(std::string_view text, size_t at, Categories set) {
  return at < text.size() && character_at(text, at).in(set);
}
bool is_letter(std::string_view text, size_t at) { return is_in(text, at, kLetter); }
bool is_number(std::string_view text, size_t at) { return is_in(text, at, kNumber); }
bool is_space(std::string_view text, size_t at) { return is_in(text, at, kSpace); }
bool is_other(std::string_view text, size_t at) { return is_in(text, at, ~kNoOther); }

// Returns the end of the characters from `at` for which `holds(text, position)`, at most `limit` of them.
template <class Predicate>
size_t skip(std::string_view text, size_t at, Predicate&& holds, size_t limit = std::string_view::npos) {
  for (; limit > 0 && at < text.size() && holds(text, at); --limit) at += decode_utf8(text, at).bytes;
  return at;
}

// Returns the end of 's|'t|'re|'ve|'m|'ll|'d at `at`, or `at` if there is none. Ignoring case means simple case
// folding, by which the long s (U+017F) is an s.
size_t skip_contraction(std::string_view text, size_t at, bool ignore_case) {
  constexpr std::string_view kLongS = "\u017f";
  if (text[at] != '\'' || text.size() - at < 2) return at;
  const auto letter = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = letter(at + 1), second = letter(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l')) return at + 3;
  if (ignore_case && text.substr(at + 1).starts_with(kLongS)) return at + 1 + kLongS.size();
  return at;
}

// Returns the end of \s+(?!\S)|\s+ over the white space [begin, end): all of it at the end of the text; before a word
// all but the last character, which that word may take, unless it is the only one.
size_t leave_last_space(std::string_view text, size_t begin, size_t end) {
  if (end == text.size()) return end;
  const size_t last = start_of_last(text, end);
  return last > begin ? last : end;
}

size_t gpt2_word_end(std::string_view text, size_t begin) {
  if (const size_t end = skip_contraction(text, begin, /*ignore_case=*/false); end > begin) return end;
  const size_t first = begin + (text[begin] == ' ');
  if (is_letter(text, first)) return skip(text, first, is_letter);
  if (is_number(text, first)) return skip(text, first, is_number);
  if (is_other(text, first)) return skip(text, first, is_other);
  return leave_last_space(text, begin, skip(text, begin, is_space));
}

// Returns the end of a word by the pattern of OpenAI's cl100k_base, from which Llama3's and Qwen2's come.
size_t cl100k_word_end(std::string_view text, size_t begin, size_t most_digits) {
  if (const size_t end = skip_contraction(text, begin, /*ignore_case=*/true); end > begin) return end;
  if (is_letter(text, begin)) return skip(text, begin, is_letter);
  if (is_number(text, begin)) return skip(text, begin, is_number, most_digits);
  const size_t second = begin + decode_utf8(text, begin).bytes;
  if (!is_newline(text[begin]) && is_letter(text, second)) return skip(text, second, is_letter);

  const size_t first = begin + (text[begin] == ' ');
  if (is_other(text, first)) {
    size_t end = skip(text, first, is_other);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  const size_t end = skip(text, begin, is_space);
  for (size_t last = end; last > begin; --last) {
    if (is_newline(text[last - 1])) return last;
  }
  return leave_last_space(text, begin, end);
}

}  // namespace

std::string_view regex_of(WordPattern pattern) { return kRegexes[static_cast<size_t>(pattern)]; }

std::optional<WordPattern> word_pattern_of(std::string_view regex) {
  for (const WordPattern known : {WordPattern::Gpt2, WordPattern::Llama3, WordPattern::Qwen2}) {
    if (regex_of(known) == regex) return known;
  }
  return {};
}

size_t word_end(WordPattern pattern, std::string_view text, size_t begin) {
  switch (pattern) {
    case WordPattern::Gpt2:
      return gpt2_word_end(text, begin);
    case WordPattern::Llama3:
      return cl100k_word_end(text, begin, 3);
    case WordPattern::Qwen2:
      return cl100k_word_end(text, begin, 1);
  }
  internal_error("word pattern {} has no scanner", static_cast<int>(pattern));
}

}  // namespace snug
