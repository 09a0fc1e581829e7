#include "format/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "format/unicode.h"

namespace snug::jinja {
namespace {

constexpr size_t kShort = 16;  // bytes of a text that is looked for at every place of another

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

constexpr char32_t kSigma = 0x3a3;

bool is_cased(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return false;
  }
}

// Returns whether a character is passed over where the letters beside a sigma are looked for.
bool ignores_case(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019;
  }
}

bool is_upper(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU; }

// Appends a letter in upper, title or lower case. Sharp s is the one common letter that becomes two, and the dotted I
// the one that does in lower case.
void append_cased(char32_t c, Case which, std::string& out) {
  const auto point = static_cast<utf8proc_int32_t>(c);
  if (c == 0xdf && which != Case::Lower) {
    out += which == Case::Upper ? "SS" : "Ss";
    return;
  }
  if (c == 0x130 && which == Case::Lower) {
    out += "i\u0307";
    return;
  }
  const utf8proc_int32_t cased = which == Case::Upper   ? utf8proc_toupper(point)
                                 : which == Case::Lower ? utf8proc_tolower(point)
                                                        : utf8proc_totitle(point);
  append_utf8(static_cast<char32_t>(cased), out);
}

}  // namespace

std::vector<Run> Text::runs() const {
  if (bytes_.empty()) return {};
  if (runs_.empty()) return {{mark_, bytes_.size()}};
  return runs_;
}

size_t Text::run_of(size_t byte) const {
  const auto above = [](size_t at, const Run& run) { return at < run.end; };
  return static_cast<size_t>(std::upper_bound(runs_.begin(), runs_.end(), byte, above) - runs_.begin());
}

Mark Text::mark_at(size_t byte) const { return runs_.empty() || byte >= size() ? mark_ : runs_[run_of(byte)].mark; }

void Text::append_run(Mark mark, size_t end) {
  if (!runs_.empty() && runs_.back().mark == mark) {
    runs_.back().end = end;
  } else {
    runs_.push_back({mark, end});
  }
}

void Text::append(std::string_view bytes, Mark mark) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    mark_ = mark;
  } else if (runs_.empty() && mark != mark_) {
    runs_.push_back({mark_, bytes_.size()});
  }
  bytes_ += bytes;
  if (!runs_.empty()) append_run(mark, bytes_.size());
}

void Text::append(const Text& text, size_t begin, size_t end) {
  if (text.runs_.empty()) {
    append(text.view(begin, end), text.mark_);
    return;
  }
  for (size_t run = text.run_of(begin); begin < end; ++run) {
    const size_t stop = std::min(end, text.runs_[run].end);
    append(text.view(begin, stop), text.runs_[run].mark);
    begin = stop;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

void Text::mark_from(size_t begin, Mark bits) {
  if (begin >= size()) return;
  const Text tail = slice(begin, size());
  const std::vector<Run> marked = tail.runs();
  if (runs_.empty()) runs_.push_back({mark_, size()});
  runs_.resize(run_of(begin) + 1);
  runs_.back().end = begin;
  if (begin == (runs_.size() > 1 ? runs_[runs_.size() - 2].end : 0)) runs_.pop_back();
  for (const Run& run : marked) append_run(run.mark | bits, begin + run.end);
}

void Text::clear() {
  bytes_.clear();
  runs_.clear();
}

size_t count_code_points(std::string_view text) {
  const auto continuations = static_cast<size_t>(std::count_if(text.begin(), text.end(), is_continuation));
  // A text that begins with continuation bytes counts as beginning with a code point.
  return text.size() - continuations + (!text.empty() && is_continuation(text[0]) ? 1 : 0);
}

size_t next_code_point(std::string_view text, size_t byte) {
  do ++byte;
  while (byte < text.size() && is_continuation(text[byte]));
  return byte;
}

size_t previous_code_point(std::string_view text, size_t byte) {
  do --byte;
  while (byte > 0 && is_continuation(text[byte]));
  return byte;
}

char32_t code_point_between(std::string_view text, size_t begin, size_t end) {
  const auto first = static_cast<unsigned char>(text[begin]);
  if (first < 0x80 || end - begin > 4 || find_invalid_utf8(text.substr(begin, end - begin))) return first;
  return decode_utf8(text, begin).value;
}

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_python_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_decimal(char32_t c) { return is_in(c, categories(Category::Nd)); }

int decimal_value(char32_t c) {
  char32_t zero = c;  // scripts have their digits in tens
  while (zero > 0 && is_decimal(zero - 1)) --zero;
  return static_cast<int>((c - zero) % 10);
}

size_t find_text(std::string_view text, std::string_view found, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (found.size() <= kShort) return text.find(found, from);
  // memmem() is linear for any text, as std::string_view::find() is not.
  const void* const hit = memmem(text.data() + from, text.size() - from, found.data(), found.size());
  if (!hit) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

SearchFromRight::SearchFromRight(std::string_view text, std::string_view found) : text_(text), found_(found) {
  if (found.size() <= kShort) return;
  reversed_text_.assign(text.rbegin(), text.rend());
  reversed_found_.assign(found.rbegin(), found.rend());
}

size_t SearchFromRight::before(size_t end) const {
  if (end < found_.size()) return std::string_view::npos;
  if (reversed_found_.empty()) return text_.rfind(found_, end - found_.size());
  const size_t hit = find_text(reversed_text_, reversed_found_, text_.size() - end);
  return hit == std::string_view::npos ? hit : text_.size() - hit - found_.size();
}

Range strip(std::string_view text, std::optional<std::string_view> characters, Sides sides) {
  std::vector<std::string_view> sorted;
  for (size_t at = 0; characters && at < characters->size();) {
    const size_t next = next_code_point(*characters, at);
    sorted.push_back(characters->substr(at, next - at));
    at = next;
  }
  std::ranges::sort(sorted);
  const auto goes = [&](size_t begin, size_t end) {
    if (characters) return std::ranges::binary_search(sorted, text.substr(begin, end - begin));
    const char32_t c = code_point_between(text, begin, end);
    return is_python_space(c) && (c < 0x80 || end - begin > 1);
  };
  Range kept{0, text.size()};
  while (sides != Sides::Right && kept.begin < kept.end) {
    const size_t next = next_code_point(text, kept.begin);
    if (!goes(kept.begin, next)) break;
    kept.begin = next;
  }
  while (sides != Sides::Left && kept.begin < kept.end) {
    const size_t last = std::max(previous_code_point(text, kept.end), kept.begin);
    if (!goes(last, kept.end)) break;
    kept.end = last;
  }
  return kept;
}

namespace {

// Returns whether a sigma that ends at `at` is the last letter of a word, of more than it. Runs of what ignores case
// are looked at for a while only.
bool ends_word(std::string_view text, size_t at, bool after_letter) {
  constexpr size_t kFurthest = 32;
  if (!after_letter) return false;
  for (size_t looked = 0; at < text.size() && looked < kFurthest; ++looked) {
    const size_t next = next_code_point(text, at);
    const char32_t c = code_point_between(text, at, next);
    if (is_cased(c)) return false;
    if (!ignores_case(c)) return true;
    at = next;
  }
  return true;
}

}  // namespace

Text in_case(const Text& text, Case which) {
  Text out;
  out.reserve(text.size());
  bool begins = true;         // at the first letter, or the first behind something that is none
  bool after_letter = false;  // whatever ignores case between
  std::string cased;
  for (size_t at = 0; at < text.size();) {
    const size_t next = next_code_point(text.bytes(), at);
    const char32_t c = code_point_between(text.bytes(), at, next);
    Case letter = which;
    if (which == Case::Capitalize || which == Case::Title) letter = begins ? Case::Title : Case::Lower;
    if (which == Case::Swap) letter = is_upper(c) ? Case::Lower : Case::Upper;
    cased.clear();
    if (letter == Case::Lower && c == kSigma && ends_word(text.bytes(), next, after_letter)) {
      cased += "ς";
    } else if (c >= 0x80 && next - at == 1) {
      cased += text.bytes()[at];  // not UTF-8
    } else {
      append_cased(c, letter, cased);
    }
    out.append(cased, text.mark_at(at));
    begins = which == Case::Title && !is_cased(c);
    after_letter = is_cased(c) || (after_letter && ignores_case(c));
    at = next;
  }
  return out;
}

size_t replaced_size(std::string_view text, std::string_view found, size_t replacement, int64_t limit) {
  size_t times = 0;
  if (found.empty()) {
    times = count_code_points(text) + 1;
    if (limit >= 0) times = std::min(times, static_cast<size_t>(limit));
  } else {
    for (size_t at = find_text(text, found);
         at != std::string_view::npos && (limit < 0 || times < static_cast<size_t>(limit));
         at = find_text(text, found, at + found.size())) {
      ++times;
    }
  }
  const size_t kept = text.size() - times * found.size();
  return times > 0 && replacement > (SIZE_MAX - kept) / times ? SIZE_MAX : kept + times * replacement;
}

Text replaced(const Text& text, std::string_view found, const Text& replacement, int64_t limit) {
  Text out;
  size_t at = 0;
  if (found.empty()) {
    for (; limit != 0; --limit) {
      out.append(replacement);
      if (at == text.size()) return out;
      const size_t next = next_code_point(text.bytes(), at);
      out.append(text, at, next);
      at = next;
    }
  } else {
    for (size_t hit = 0; limit != 0 && (hit = find_text(text.bytes(), found, at)) != std::string::npos; --limit) {
      out.append(text, at, hit);
      out.append(replacement);
      at = hit + found.size();
    }
  }
  out.append(text, at, text.size());
  return out;
}

Text html_escaped(const Text& text) {
  constexpr std::array<std::pair<char, std::string_view>, 5> kEscapes = {
      {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}}};
  Text out;
  size_t from = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto* const escape = std::ranges::find(kEscapes, text.bytes()[at], &std::pair<char, std::string_view>::first);
    if (escape == kEscapes.end()) continue;
    out.append(text, from, at);
    out.append(escape->second, text.mark_at(at));
    from = at + 1;
  }
  out.append(text, from, text.size());
  return out;
}

}  // namespace snug::jinja
