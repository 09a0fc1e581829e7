// Handles letters and white space of ASCII, whatever the locale.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace snug {

// Returns the text with A to Z in lower case; other bytes do not change.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

// Return how many bytes of white space, as JSON defines it, a text begins with, or ends with.
inline constexpr std::string_view kJsonWhite = " \t\n\r";
inline size_t white_before(std::string_view text) { return std::min(text.find_first_not_of(kJsonWhite), text.size()); }
inline size_t white_behind(std::string_view text) { return text.size() - (text.find_last_not_of(kJsonWhite) + 1); }

}  // namespace snug
