// Parses a chat template's text to a tree whose names are resolved.
#pragma once

#include <memory>
#include <string_view>

#include "format/jinja_ast.h"

namespace snug::jinja {

// Returns the program of a text. Throws UserError that names `source` and the line if the text is no template, or uses
// what chat templates do not (inheritance, imports).
std::shared_ptr<const Program> parse_program(std::string_view text, std::string_view source);

// Gives every name of the program its slot, by Jinja's scopes: a block that is no branch has names of its own, which
// begin as those outside it; a macro sees the names around it as they are when it is called.
void resolve_names(Program& program);

}  // namespace snug::jinja
