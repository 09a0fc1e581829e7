// Declares parts that methods of strings and filters share.
#pragma once

#include <string_view>
#include <vector>

#include "format/jinja_value.h"

namespace snug::jinja {

// Returns lines as str.splitlines() does.
std::vector<Range> lines_of(std::string_view text, bool keep_ends);
// Returns whether the text's last character ends a line.
bool ends_line(std::string_view text);

// Return what str.replace(), and str.center(), ljust() (Left) or rjust() (Right) do.
Value replaced_string(Budget& budget, const Value& text, std::string_view from, const Text& to, int64_t limit);
Value padded(Budget& budget, const Value& text, int64_t width, std::string_view fill, Sides side);

// Returns the number of runs of letters, digits and underscores.
size_t words_of(std::string_view text);

}  // namespace snug::jinja
