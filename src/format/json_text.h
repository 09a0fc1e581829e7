// Writes JSON as text, where a tree of values would only be written and read again.
#pragma once

#include <string>
#include <string_view>

namespace snug {

// Appends a string with its quotes (RFC 8259). `text` is UTF-8.
void append_json_string(std::string& out, std::string_view text);
// Appends a table's cell as a string; or as a list or an object, if `may_be_json` and the whole cell is one (as chat
// data is often exported).
void append_json_text(std::string& out, std::string_view cell, bool may_be_json);

}  // namespace snug
