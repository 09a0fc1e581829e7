#include "report/html.h"

#include <cmath>

#include "format/unicode.h"

namespace snug {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

void append_escaped(std::string& out, char c) {
  switch (c) {
    case '<':
      out += "&lt;";
      break;
    case '>':
      out += "&gt;";
      break;
    case '&':
      out += "&amp;";
      break;
    case '"':
      out += "&quot;";
      break;
    case '\'':
      out += "&#39;";
      break;
    default:
      if ((c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == 0x7f)
        out += kReplacement;
      else
        out += c;
  }
}

// 0x80 to 0x9f: controls too.
bool is_high_control(std::string_view text, size_t at) {
  return text[at] == '\xc2' && at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) < 0xa0;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t good = find_invalid_utf8(text).value_or(text.size());
    for (size_t i = 0; i < good; i++) {
      if (is_high_control(text, i))
        out += kReplacement, i++;
      else
        append_escaped(out, text[i]);
    }
    if (good < text.size()) out += kReplacement;
    text.remove_prefix(std::min(good + 1, text.size()));
  }
  return out;
}

std::string cut_text(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && most - end < 4 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) end--;
  return std::string(text.substr(0, end)) + "\xe2\x80\xa6";
}

std::string grouped_number(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "-" : fmt::format("{}", value);
  if (std::fabs(value) >= 1000 && std::fabs(value) < 1e15) return grouped_number(std::llround(value));
  return fmt::format("{:.4g}", value);
}

std::string bytes_text(double bytes) {
  if (!std::isfinite(bytes)) return "-";
  for (const auto& [unit, size] : {std::pair("GiB", 0x1p30), {"MiB", 0x1p20}, {"KiB", 0x1p10}})
    if (std::fabs(bytes) >= size) return fmt::format("{:.2f} {}", bytes / size, unit);
  return fmt::format("{:.0f} B", bytes);
}

}  // namespace snug
