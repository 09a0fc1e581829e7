#include "format/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "format/jinja_text.h"
#include "format/jinja_value.h"
#include "format/unicode.h"

namespace snug::jinja {
namespace {

constexpr size_t kMaxTokens = 1 << 19;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_word_start(c) || is_digit(c); }

// Returns the source with \n for every newline, and without the last one.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

uint32_t hex_value(std::string_view digits, size_t count) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + std::min(count, digits.size()), value, 16);
  if (digits.size() < count || error != std::errc() || end != digits.data() + count)
    fail("found a string with a broken escape, expected {} hexadecimal digits", count);
  return value;
}

// Returns what the inside of a quoted string stands for, with Python's escapes; unknown ones stay.
std::string unescaped(std::string_view inside) {
  std::string out;
  for (size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] != '\\' || i + 1 == inside.size()) {
      out += inside[i];
      continue;
    }
    const char c = inside[++i];
    constexpr std::string_view kFrom = "nrtabfv\\'\"", kTo = "\n\r\t\a\b\f\v\\'\"";
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      out += kTo[simple];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const uint32_t point = hex_value(inside.substr(i + 1), count);
      if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
        fail("found a string with the escape of U+{:04X}, which is no character", point);
      append_utf8(point, out);
      i += count;
    } else if (c >= '0' && c <= '7') {
      uint32_t point = 0;
      size_t digits = 0;
      for (; digits < 3 && i + digits < inside.size() && inside[i + digits] >= '0' && inside[i + digits] <= '7';
           ++digits)
        point = point * 8 + static_cast<uint32_t>(inside[i + digits] - '0');
      append_utf8(point, out);
      i += digits - 1;
    } else if (c != '\n') {
      out += '\\';
      out += c;
    }
  }
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, uint32_t& line) : source_(std::move(source)), rest_(source_), line_(line) { line_ = 1; }

  std::vector<Token> all() {
    while (!rest_.empty()) text_and_tag();
    push(Token::Type::End, "");
    return std::move(tokens_);
  }

 private:
  Token& push(Token::Type type, std::string_view text) {
    if (tokens_.size() >= kMaxTokens) fail("found more than {} words in tags", kMaxTokens);
    tokens_.push_back({.type = type, .line = line_, .text = std::string(text)});
    return tokens_.back();
  }

  void skip(size_t bytes) {
    line_ += static_cast<uint32_t>(std::count(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(bytes), '\n'));
    starts_line_ = bytes > 0 && rest_[bytes - 1] == '\n';
    rest_.remove_prefix(bytes);
  }

  size_t white_space() const { return strip(rest_, {}, Sides::Left).begin; }

  // Adds the text before a tag as it prints; `mark` is the character behind the tag's opening.
  void push_text(std::string_view text, bool prints, char mark) {
    if (mark == '-') {
      text = text.substr(0, strip(text, {}, Sides::Right).end);
    } else if (mark != '+' && !prints) {
      const size_t line = text.rfind('\n') + 1;
      if ((line > 0 || starts_line_) && strip(text.substr(line), {}, Sides::Left).begin == text.size() - line)
        text = text.substr(0, line);
    }
    if (!text.empty()) push(Token::Type::Text, text);
  }

  void text_and_tag() {
    size_t begin = rest_.find('{');
    while (begin != std::string_view::npos &&
           (begin + 1 == rest_.size() || std::string_view("{%#").find(rest_[begin + 1]) == std::string_view::npos)) {
      begin = rest_.find('{', begin + 1);
    }
    const std::string_view text = rest_.substr(0, begin);
    if (begin == std::string_view::npos) {
      push(Token::Type::Text, text);
      skip(text.size());
      return;
    }
    const char kind = rest_[begin + 1], mark = begin + 2 < rest_.size() ? rest_[begin + 2] : '\0';
    push_text(text, kind == '{', mark);
    const bool marked = mark == '-' || mark == '+';
    skip(begin + 2);
    if (marked) skip(1);
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    push(kind == '{' ? Token::Type::PrintBegin : Token::Type::TagBegin, kind == '{' ? "{{" : "{%");
    inside(kind == '{');
  }

  // Ends a tag at "%}" or "#}" with the mark before it, if there is one.
  void end_tag(size_t end, char mark) {
    skip(end + 2);
    if (mark == '-') {
      skip(white_space());
    } else if (mark != '+' && rest_.starts_with('\n')) {
      skip(1);
    }
  }

  void comment() {
    if (rest_.empty()) return;  // as Jinja
    const size_t end = rest_.find("#}");
    if (end == std::string_view::npos) fail("found a comment without '#}}'");
    end_tag(end, end == 0 ? '\0' : rest_[end - 1]);
  }

  // Returns how many bytes a tag that consists of `word` has, behind its "{%"; nothing if it is another.
  static std::optional<size_t> lone_word(std::string_view text, std::string_view word, char& mark) {
    size_t at = strip(text, {}, Sides::Left).begin;
    if (!text.substr(at).starts_with(word)) return {};
    at += word.size();
    at += strip(text.substr(at), {}, Sides::Left).begin;
    mark = at < text.size() ? text[at] : '\0';
    if (mark == '-' || mark == '+') ++at;
    if (!text.substr(at).starts_with("%}")) return {};
    return at;
  }

  // Reads a raw block, of which "{%" has been read.
  bool raw() {
    char mark = 0;
    const auto end = lone_word(rest_, "raw", mark);
    if (!end || mark == '+') return false;
    skip(*end + 2);
    if (mark == '-') skip(white_space());
    if (rest_.empty()) return true;  // as Jinja
    for (size_t at = rest_.find("{%"); at != std::string_view::npos; at = rest_.find("{%", at + 2)) {
      const char opening = at + 2 < rest_.size() ? rest_[at + 2] : '\0';
      const bool marked = opening == '-' || opening == '+';
      const size_t inside = at + 2 + (marked ? 1 : 0);
      const auto close = lone_word(rest_.substr(inside), "endraw", mark);
      if (!close) continue;
      push_text(rest_.substr(0, at), false, opening);
      skip(inside);
      end_tag(*close, mark);
      return true;
    }
    fail("found a raw block without '{{% endraw %}}'");
  }

  void inside(bool prints) {
    const std::string_view closing = prints ? "}}" : "%}";
    std::string open;  // brackets
    for (;;) {
      skip(white_space());
      if (rest_.empty()) fail("found the end of the template within a tag, expected '{}'", closing);
      if (open.empty()) {
        const bool marked = rest_[0] == '-' || (rest_[0] == '+' && !prints);
        if (rest_.substr(marked ? 1 : 0).starts_with(closing)) {
          push(prints ? Token::Type::PrintEnd : Token::Type::TagEnd, closing);
          const char mark = marked ? rest_[0] : '\0';
          if (prints) {
            skip(marked ? 3 : 2);
            if (mark == '-') skip(white_space());
          } else {
            end_tag(marked ? 1 : 0, mark);
          }
          return;
        }
      }
      word(open);
    }
  }

  void word(std::string& open) {
    const char c = rest_[0];
    if (is_word_start(c)) {
      size_t end = 1;
      while (end < rest_.size() && is_word(rest_[end])) ++end;
      push(Token::Type::Name, rest_.substr(0, end));
      skip(end);
    } else if (is_digit(c)) {
      number();
    } else if (c == '\'' || c == '"') {
      string(c);
    } else {
      bracket_or_operator(open);
    }
  }

  // Returns the end of digits with single underscores between them, from `at` on.
  size_t digits_end(size_t at) const {
    while (at < rest_.size() &&
           (is_digit(rest_[at]) || (rest_[at] == '_' && at + 1 < rest_.size() && is_digit(rest_[at + 1]))))
      ++at;
    return at;
  }

  void number() {
    const bool behind_dot =
        !tokens_.empty() && tokens_.back().type == Token::Type::Operator && tokens_.back().text == ".";
    size_t end = digits_end(0);
    bool real = false;
    const auto digit_at = [&](size_t at) { return at < rest_.size() && is_digit(rest_[at]); };
    if (!behind_dot) {
      if (end < rest_.size() && rest_[end] == '.' && digit_at(end + 1)) {
        end = digits_end(end + 1);
        real = true;
      }
      if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
        const size_t sign = end + 1 < rest_.size() && (rest_[end + 1] == '+' || rest_[end + 1] == '-') ? 1 : 0;
        if (digit_at(end + 1 + sign)) {
          end = digits_end(end + 1 + sign);
          real = true;
        }
      }
    }
    std::string plain(rest_.substr(0, end));
    std::erase(plain, '_');
    Token& token = push(real ? Token::Type::Float : Token::Type::Integer, plain);
    const char* const last = plain.data() + plain.size();
    const auto result =
        real ? std::from_chars(plain.data(), last, token.real) : std::from_chars(plain.data(), last, token.integer);
    if (result.ec != std::errc()) fail("found the number {}, expected one that 64 bits hold", plain);
    skip(end);
  }

  void string(char quote) {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail("found a string without its closing {}", quote);
    push(Token::Type::String, unescaped(rest_.substr(1, end - 1)));
    skip(end + 1);
  }

  void bracket_or_operator(std::string& open) {
    constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", ">=", "<="};
    const std::string_view two = rest_.substr(0, 2);
    const char c = rest_[0];
    if (std::ranges::find(kPairs, two) != kPairs.end()) {
      push(Token::Type::Operator, two);
      skip(2);
      return;
    }
    if (std::string_view("+-/*%~[](){}><=.:|,").find(c) == std::string_view::npos)
      fail("found the character '{}' in a tag", rest_.substr(0, next_code_point(rest_, 0)));
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail("found '{}' without the bracket that it closes", c);
      open.pop_back();
    }
    push(Token::Type::Operator, rest_.substr(0, 1));
    skip(1);
  }

  const std::string source_;
  std::string_view rest_;
  uint32_t& line_;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, uint32_t& line) {
  return Lexer(with_plain_newlines(source), line).all();
}

std::string described(const Token& token) {
  switch (token.type) {
    case Token::Type::End:
      return "the end of the template";
    case Token::Type::Text:
      return "text";
    default:
      return fmt::format("'{}'", token.text.size() > 60 ? token.text.substr(0, 57) + "..." : token.text);
  }
}

}  // namespace snug::jinja
