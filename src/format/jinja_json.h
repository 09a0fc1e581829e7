// Reads JSON as values of a template, with keys in the order in which they are written.
#pragma once

#include <string_view>

#include "format/jinja_value.h"

namespace snug::jinja {

// Returns the value of a JSON text. Throws Failure for what is no JSON, has more than 64 levels, or has numbers that no
// 64-bit type holds. A later key replaces an equal one, as in Python.
Value value_of_json(std::string_view text);

// Returns the value with all that is in it; each byte that prints it has the mark.
Value marked(const Value& v, Mark mark);

// Returns the bytes of all texts in it, and some for each value.
uint64_t bytes_of(const Value& v);

}  // namespace snug::jinja
