#include "image/data_url.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.h"

namespace snug {

namespace {

constexpr uint8_t kNoDigit = 64;

constexpr std::array<uint8_t, 256> digit_values() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<uint8_t, 256> values{};
  values.fill(kNoDigit);
  for (size_t i = 0; i < kDigits.size(); i++) values[static_cast<uint8_t>(kDigits[i])] = static_cast<uint8_t>(i);
  return values;
}

constexpr std::array<uint8_t, 256> kValues = digit_values();

}  // namespace

bool is_bare_base64(std::string_view text) {
  constexpr size_t kNoPath = 255;  // a name of a file is no longer
  constexpr std::array<std::string_view, 3> kBegins = {"iVBORw0KGgo", "/9j/", "UklGR"};  // of PNG, JPEG and WebP
  const bool begins = std::ranges::any_of(kBegins, [&](std::string_view begin) { return text.starts_with(begin); });
  if (!begins && text.size() <= kNoPath) return false;
  return std::ranges::all_of(
      text, [](char c) { return kValues[static_cast<uint8_t>(c)] != kNoDigit || c == '=' || c == '\n' || c == '\r'; });
}

std::string bytes_of_data_url(std::string_view url, std::string_view source) {
  const size_t comma = url.find(',');
  if (!is_data_url(url) || comma == url.npos || !lower_case(url.substr(0, comma)).ends_with(";base64"))
    user_error("{}: found '{}', expected a data URL such as 'data:image/png;base64,...'", source, url.substr(0, 40));
  const std::string_view text = url.substr(comma + 1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  size_t digits = 0, padding = 0;
  for (size_t i = 0; i < text.size(); i++) {
    const char c = text[i];
    if (c == '\n' || c == '\r') continue;
    if (c == '=') {
      padding++;
      continue;
    }
    const uint8_t value = kValues[static_cast<uint8_t>(c)];
    if (value == kNoDigit || padding > 0)
      user_error("{}: found byte {:#04x} at place {} of the base64, expected a digit of it", source,
                 static_cast<uint8_t>(c), i);
    bits = bits << 6 | value;
    digits++;
    if (digits % 4 != 0) continue;
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(bits >> shift & 0xff));
    bits = 0;
  }
  // Two digits more are a byte, three are two; '=' fills up to four.
  const size_t rest = digits % 4;
  if (rest == 1 || padding != (4 - rest) % 4)
    user_error("{}: the base64 has {} digits and {} '=', expected multiples of four: it is cut", source, digits,
               padding);
  if (rest >= 2) bytes.push_back(static_cast<char>(bits >> (rest == 2 ? 4 : 10) & 0xff));
  if (rest == 3) bytes.push_back(static_cast<char>(bits >> 2 & 0xff));
  return bytes;
}

}  // namespace snug
