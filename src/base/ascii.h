// Letters of ASCII, whatever the locale.
#pragma once

#include <string>
#include <string_view>

namespace snug {

// Returns the text with A to Z made small; other bytes are as they were.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

}  // namespace snug
