// JSON as values of a template, with keys in the order in which they are written.
#pragma once

#include <string_view>

#include "format/jinja_value.h"

namespace snug::jinja {

// Failure for what is no JSON, has more than 64 levels, or numbers that no 64-bit type holds. A later key replaces an
// equal one, as in Python.
Value value_of_json(std::string_view text);

// The value with all that is in it, each byte that prints it with the mark.
Value marked(const Value& v, Mark mark);

// Bytes of all texts in it, and some for each value.
uint64_t bytes_of(const Value& v);

}  // namespace snug::jinja
