// Text that a page may hold: what comes from files is escaped on its way in, by the type of what is joined.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <type_traits>

namespace snug {

// Markup as it stands. Everything else is text.
struct Html {
  std::string text;
};

// Text as a page shows it, in element or attribute: `<`, `>`, `&` and quotes as entities; bytes that are no UTF-8, and
// control characters but tab and newline, as U+FFFD.
std::string escape_html(std::string_view text);

// The first `most` bytes or a little fewer, with an ellipsis where something was cut; a character that is UTF-8 stays
// whole.
std::string cut_text(std::string_view text, size_t most);

inline const std::string& html_piece(const Html& markup) { return markup.text; }
inline std::string html_piece(std::string_view text) { return escape_html(text); }
template <class T>
requires std::is_arithmetic_v<T> T html_piece(T number) { return number; }

template <class T>
using HtmlPiece = decltype(html_piece(std::declval<const T&>()));

// Markup of a format and its arguments, of which all text is escaped.
template <class... T>
Html html(fmt::format_string<HtmlPiece<T>...> format, const T&... values) {
  return {fmt::format(format, html_piece(values)...)};
}

// 4.0434, 1.5e-05, 18,168: four digits, or all before the point; "-" for what is no number.
std::string short_number(double value);
// 1234567 -> "1,234,567"
std::string grouped_number(int64_t value);
// 800146432 -> "763.08 MiB"
std::string bytes_text(double bytes);

}  // namespace snug
