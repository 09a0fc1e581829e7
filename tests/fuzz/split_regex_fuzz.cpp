// An expression, a blank line and a text: anything but a UserError, or matches in order within the text, is a fault.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "format/split_regex.h"
#include "format/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find("\n\n"), input.size());
  const std::string_view text = input.substr(std::min(end + 2, input.size()));
  try {
    const snug::SplitRegex regex(input.substr(0, end),
                                 [](const std::string& expected) { snug::user_error("expected {}", expected); });
    if (snug::find_invalid_utf8(text)) return 0;
    snug::SplitRegex::Scratch scratch;
    for (size_t at = 0; at < text.size();) {
      const auto match = regex.find(text, at, scratch);
      if (!match) break;
      if (match->first < at || match->second <= match->first || match->second > text.size()) std::abort();
      at = match->second;
    }
  } catch (const snug::UserError&) {
  }
  return 0;
}
