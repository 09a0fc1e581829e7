#include "format/json_text.h"

#include <fmt/format.h>

#include <iterator>

#include "base/error.h"
#include "format/json.h"

namespace snug {
namespace {

bool is_list_or_object(std::string_view cell) {
  const size_t first = cell.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || (cell[first] != '[' && cell[first] != '{')) return false;
  try {
    parse_json(cell, "");
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_json_text(std::string& out, std::string_view cell, bool may_be_json) {
  if (may_be_json && is_list_or_object(cell)) {
    out += cell;
  } else {
    append_json_string(out, cell);
  }
}

}  // namespace snug
