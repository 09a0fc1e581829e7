// Prints values: Python's str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>

#include "format/jinja_value.h"
#include "format/unicode.h"

namespace snug::jinja {
namespace {

// Asks for room while output grows by parts that no value holds yet.
void watch(Budget& budget, const Text& out) {
  budget.step();
  if (out.size() > budget.bytes) budget.ask(out.size());
}

// Returns the escape of a character within quotes; empty if it stands for itself.
std::string repr_escape(char32_t c, char quote) {
  if (c == '\\') return "\\\\";
  if (c == static_cast<unsigned char>(quote)) return fmt::format("\\{}", quote);
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (is_python_printable(c)) return "";
  if (c < 0x100) return fmt::format("\\x{:02x}", uint32_t{c});
  return c < 0x10000 ? fmt::format("\\u{:04x}", uint32_t{c}) : fmt::format("\\U{:08x}", uint32_t{c});
}

void append_string_repr(const Text& text, Text& out) {
  const std::string_view bytes = text.bytes();
  const bool doubles = bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos;
  const char quote = doubles ? '"' : '\'';
  const Mark first = text.mark_at(0);
  out.append(std::string_view(&quote, 1), first);
  size_t from = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t next = next_code_point(bytes, at);
    const char32_t c = code_point_between(bytes, at, next);
    const std::string escape = repr_escape(c, quote);
    if (!escape.empty()) {
      out.append(text, from, at);
      out.append(escape, text.mark_at(at));
      from = next;
    }
    at = next;
  }
  out.append(text, from, bytes.size());
  out.append(std::string_view(&quote, 1), text.mark_at(bytes.empty() ? 0 : bytes.size() - 1));
}

void append_items(Budget& budget, const ListRep& list, Mark mark, std::string_view open, std::string_view close,
                  Text& out) {
  out.append(open, mark);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ", mark);
    append_repr(budget, list.items[i], out);
  }
  if (list.items.size() == 1 && list.sequence == Sequence::Tuple) out.append(",", mark);
  out.append(close, mark);
}

void append_list_repr(Budget& budget, const Value& v, Text& out) {
  const auto& list = v.as<ListRep>();
  switch (list.sequence) {
    case Sequence::List:
      return append_items(budget, list, v.mark(), "[", "]", out);
    case Sequence::Tuple:
      return append_items(budget, list, v.mark(), "(", ")", out);
    case Sequence::Keys:
      return append_items(budget, list, v.mark(), "dict_keys([", "])", out);
    case Sequence::Values:
      return append_items(budget, list, v.mark(), "dict_values([", "])", out);
    case Sequence::Items:
      return append_items(budget, list, v.mark(), "dict_items([", "])", out);
    case Sequence::Range: {
      const auto& items = list.items;
      const int64_t first = items.empty() ? 0 : items[0].integer();
      const int64_t step = items.size() < 2 ? 1 : items[1].integer() - first;
      const std::string steps = step == 1 ? "" : fmt::format(", {}", step);
      out.append(fmt::format("range({}, {}{})", first, list.end, steps), v.mark());
      return;
    }
    case Sequence::Iterator:
      out.append("<generator object>", v.mark());
  }
}

// Returns the escape of a byte within a JSON string; empty if it stands for itself.
std::string json_escape(char32_t c, bool ensure_ascii) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      break;
  }
  if (c < 0x20 || (ensure_ascii && c >= 0x7f && c < 0x10000)) return fmt::format("\\u{:04x}", uint32_t{c});
  if (!ensure_ascii || c < 0x10000) return "";
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((uint32_t{c} - 0x10000) >> 10),
                     0xdc00 + ((uint32_t{c} - 0x10000) & 0x3ff));
}

void append_json_string(const Text& text, bool ensure_ascii, Text& out) {
  const std::string_view bytes = text.bytes();
  const Mark first = text.mark_at(0);
  out.append("\"", first);
  size_t from = 0;
  for (size_t at = 0; at < bytes.size();) {
    const auto byte = static_cast<unsigned char>(bytes[at]);
    if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x7f || !ensure_ascii)) {
      ++at;
      continue;
    }
    const size_t next = next_code_point(bytes, at);
    const std::string escape = json_escape(code_point_between(bytes, at, next), ensure_ascii);
    if (!escape.empty()) {
      out.append(text, from, at);
      out.append(escape, text.mark_at(at));
      from = next;
    }
    at = next;
  }
  out.append(text, from, bytes.size());
  out.append("\"", text.mark_at(bytes.empty() ? 0 : bytes.size() - 1));
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_repr(value);
}

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style, Text& out) : budget_(budget), style_(style), out_(out) {}

  void write(const Value& v, size_t depth) {
    watch(budget_, out_);
    switch (v.kind()) {
      case Kind::None:
        return out_.append("null", v.mark());
      case Kind::Bool:
        return out_.append(v.integer() ? "true" : "false", v.mark());
      case Kind::Int:
        return out_.append(fmt::format_int(v.integer()).c_str(), v.mark());
      case Kind::Float:
        return out_.append(json_float(v.real()), v.mark());
      case Kind::String:
        budget_.ask(text_of(v).size());
        budget_.rewrite(text_of(v).size() / 2);
        return append_json_string(text_of(v), style_.ensure_ascii, out_);
      case Kind::List:
        if (v.as<ListRep>().sequence <= Sequence::Tuple) return write_list(v, depth);
        break;
      case Kind::Dict:
        return write_dict(v, depth);
      case Kind::BigInt:
        return out_.append(v.as<BigIntRep>().digits, v.mark());
      default:
        break;
    }
    refuse_undefined(v);
    fail("tojson: found a {}, expected what JSON can say", type_name(v));
  }

 private:
  void line(size_t depth, Mark mark) {
    if (!style_.lines) return;
    out_.append("\n", mark);
    for (size_t i = 0; i < depth; ++i) out_.append(style_.indent, mark);
    watch(budget_, out_);
  }

  void write_list(const Value& v, size_t depth) {
    const auto& items = v.as<ListRep>().items;
    out_.append("[", v.mark());
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator, v.mark());
      line(depth + 1, v.mark());
      write(items[i], depth + 1);
    }
    if (!items.empty()) line(depth, v.mark());
    out_.append("]", v.mark());
  }

  void write_dict(const Value& v, size_t depth) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : v.as<DictRep>().entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return compare(budget_, a->first, b->first) < 0; });
    }
    out_.append("{", v.mark());
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator, v.mark());
      line(depth + 1, v.mark());
      write_key(entries[i]->first);
      out_.append(style_.key_separator, v.mark());
      write(entries[i]->second, depth + 1);
    }
    if (!entries.empty()) line(depth, v.mark());
    out_.append("}", v.mark());
  }

  // Writes a key; one that is no string becomes a string.
  void write_key(const Value& key) {
    if (key.kind() >= Kind::None && key.kind() <= Kind::Float) {
      out_.append("\"", key.mark());
      write(key, 0);
      out_.append("\"", key.mark());
    } else if (key.is(Kind::String)) {
      write(key, 0);
    } else {
      fail("tojson: found a {} as a key, expected a string or a number", type_name(key));
    }
  }

  Budget& budget_;
  const JsonStyle& style_;
  Text& out_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[32];
  const auto written = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string_view shortest(digits, static_cast<size_t>(written.ptr - digits));
  const int exponent = std::atoi(std::string(shortest.substr(shortest.find('e') + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const auto plain = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
  std::string out(digits, static_cast<size_t>(plain.ptr - digits));
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

void append_str(Budget& budget, const Value& v, Text& out) {
  if (v.is(Kind::String)) {
    out.append(text_of(v));
  } else if (!v.is(Kind::Undefined)) {
    append_repr(budget, v, out);
  }
}

void append_repr(Budget& budget, const Value& v, Text& out) {
  watch(budget, out);
  switch (v.kind()) {
    case Kind::Undefined:
      return out.append("Undefined", v.mark());
    case Kind::None:
      return out.append("None", v.mark());
    case Kind::Bool:
      return out.append(v.integer() ? "True" : "False", v.mark());
    case Kind::Int:
      return out.append(fmt::format_int(v.integer()).c_str(), v.mark());
    case Kind::Float:
      return out.append(float_repr(v.real()), v.mark());
    case Kind::String:
      budget.ask(text_of(v).size());
      budget.rewrite(text_of(v).size());
      return append_string_repr(text_of(v), out);
    case Kind::List:
      return append_list_repr(budget, v, out);
    case Kind::Dict: {
      out.append("{", v.mark());
      const auto& entries = v.as<DictRep>().entries;
      for (size_t i = 0; i < entries.size(); ++i) {
        if (i > 0) out.append(", ", v.mark());
        append_repr(budget, entries[i].first, out);
        out.append(": ", v.mark());
        append_repr(budget, entries[i].second, out);
      }
      return out.append("}", v.mark());
    }
    case Kind::BigInt:
      return out.append(v.as<BigIntRep>().digits, v.mark());
    case Kind::Function:
    case Kind::Namespace:
    case Kind::Object:
      return out.append(fmt::format("<{}>", type_name(v)), v.mark());
  }
}

void append_json(Budget& budget, const Value& v, const JsonStyle& style, Text& out) {
  JsonWriter(budget, style, out).write(v, 0);
}

}  // namespace snug::jinja
