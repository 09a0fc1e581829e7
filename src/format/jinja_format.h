// Formats strings by Python's % and str.format().
#pragma once

#include "format/jinja_eval.h"

namespace snug::jinja {

// Returns FORMAT % VALUES, where a tuple is several values and a dict has them by name.
Value printf_formatted(Evaluator& evaluator, const Value& format, const Value& values);
// Returns FORMAT.format(...). Fields may name arguments and their attributes and items; conversions and format
// specifications are refused.
Value brace_formatted(Evaluator& evaluator, const Value& format, const Arguments& arguments);

}  // namespace snug::jinja
