#include "format/jinja_format.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace snug::jinja {
namespace {

constexpr int kMaxWidth = 1000;

// Holds one %-conversion: "%(key)-08.3f".
struct Conversion {
  std::string_view key;
  bool has_key = false;
  std::string flags;
  int width = 0, precision = -1;
  char type = '\0';
  size_t end = 0;
};

int number_at(std::string_view format, size_t& at) {
  int value = 0;
  while (at < format.size() && format[at] >= '0' && format[at] <= '9') {
    value = value * 10 + (format[at++] - '0');
    if (value > kMaxWidth) fail("found a width above {} in a format", kMaxWidth);
  }
  return value;
}

Conversion conversion_at(std::string_view format, size_t at) {
  Conversion c;
  if (at < format.size() && format[at] == '(') {
    const size_t close = format.find(')', at);
    if (close == std::string_view::npos) fail("found a format without ')'");
    c.key = format.substr(at + 1, close - at - 1);
    c.has_key = true;
    at = close + 1;
  }
  while (at < format.size() && std::string_view("-+ #0").find(format[at]) != std::string_view::npos)
    c.flags += format[at++];
  if (c.flags.size() > 5) fail("found a format with {} flags", c.flags.size());
  c.width = number_at(format, at);
  if (at < format.size() && format[at] == '.') c.precision = number_at(format, ++at);
  if (at >= format.size()) fail("found a format that ends within a conversion");
  c.type = format[at];
  c.end = at + 1;
  return c;
}

void append_padded(const Text& text, const Conversion& c, Text& out) {
  const size_t count = count_code_points(text.bytes());
  const std::string pad(count < static_cast<size_t>(c.width) ? static_cast<size_t>(c.width) - count : 0, ' ');
  const bool left = c.flags.find('-') != std::string::npos;
  if (!left) out.append(pad, text.mark_at(0));
  out.append(text);
  if (left) out.append(pad, text.mark_at(0));
}

void append_converted(Evaluator& evaluator, const Conversion& c, const Value& v, Text& out) {
  Text text;
  evaluator.budget().step(4 + static_cast<uint64_t>(c.width + std::max(c.precision, 0)) / 8);
  switch (c.type) {
    case 's':
    case 'r':
      if (v.is(Kind::String)) evaluator.budget().ask(view_of(v).size());
      if (c.type == 's') {
        append_str(evaluator.budget(), v, text);
      } else {
        append_repr(evaluator.budget(), v, text);
      }
      if (c.precision >= 0) {
        size_t end = 0;
        for (int i = 0; i < c.precision && end < text.size(); ++i) end = next_code_point(text.bytes(), end);
        text = text.slice(0, end);
      }
      evaluator.budget().scan(text.size());
      return append_padded(text, c, out);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      break;
    default:
      fail("found the conversion '%{}', which is not known", c.type);
  }
  refuse_undefined(v);
  if (!v.is_number()) fail("found a {} for '%{}', expected a number", type_name(v), c.type);
  const bool real = std::string_view("eEfFgG").find(c.type) != std::string_view::npos;
  std::string format = "%" + c.flags;
  if (c.width > 0) format += std::to_string(c.width);
  if (c.precision >= 0) format += "." + std::to_string(c.precision);
  if (!real) format += "ll";
  format += c.type == 'u' ? 'd' : c.type;
  std::string digits(static_cast<size_t>(kMaxWidth) * 2 + 400, '\0');
  int written = 0;
  if (real) {
    written = std::snprintf(digits.data(), digits.size(), format.c_str(), v.real());
  } else {
    if (v.is(Kind::Float) && !(v.real() > -9e18 && v.real() < 9e18)) fail("found a float that 64 bits do not hold");
    const long long whole = v.is(Kind::Float) ? static_cast<long long>(v.real()) : v.integer();
    written = std::snprintf(digits.data(), digits.size(), format.c_str(), whole);
  }
  out.append(std::string_view(digits).substr(0, static_cast<size_t>(std::max(written, 0))), v.mark());
}

// Returns the value that a field of str.format() names: "", "0", "name", "0.attribute[key]".
Value field_value(Evaluator& evaluator, std::string_view field, const Arguments& arguments, size_t& next) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = field.substr(0, end);
  Value v;
  evaluator.budget().step(arguments.named.size() / 8);
  size_t index = next;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  if (name.empty() || (error == std::errc() && stop == name.data() + name.size())) {
    if (name.empty()) ++next;
    if (index >= arguments.positional.size())
      fail("format: found {} values, expected more", arguments.positional.size());
    v = arguments.positional[index];
  } else {
    const auto found = std::ranges::find(arguments.named, name, &std::pair<std::string_view, Value>::first);
    if (found == arguments.named.end()) fail("format: found the field '{}' without a value", name.substr(0, 60));
    v = found->second;
  }
  for (field.remove_prefix(end); !field.empty();) {
    const bool bracket = field[0] == '[';
    const size_t close = bracket ? field.find(']') : std::min(field.find_first_of(".[", 1), field.size());
    if (close == std::string_view::npos) fail("format: found a field without ']'");
    const std::string_view key = field.substr(1, close - 1);
    int64_t position = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), position);
    const bool whole = bracket && parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
    v = evaluator.item(v, whole ? Value(position) : make_string(evaluator.budget(), Text(std::string(key))));
    field.remove_prefix(bracket ? close + 1 : close);
  }
  return v;
}

}  // namespace

Value printf_formatted(Evaluator& evaluator, const Value& format, const Value& values) {
  const Text& text = text_of(format);
  Budget& budget = evaluator.budget();
  const bool several = is_sequence(values, Sequence::Tuple);
  const size_t count = several ? values.as<ListRep>().items.size() : 1;
  size_t next = 0, from = 0;
  Text out;
  budget.read(text.size());
  for (size_t at = text.bytes().find('%'); at != std::string::npos; at = text.bytes().find('%', from)) {
    budget.step();
    budget.ask(out.size());
    out.append(text, from, at);
    const Conversion c = conversion_at(text.bytes(), at + 1);
    from = c.end;
    if (c.type == '%') {
      out.append(text, c.end - 1, c.end);
    } else if (c.has_key) {
      const Value* const found = values.is(Kind::Dict) ? values.as<DictRep>().find(budget, c.key) : nullptr;
      if (!found) fail("found a format without a value for '{}'", c.key.substr(0, 60));
      append_converted(evaluator, c, *found, out);
      next = count;
    } else {
      if (next >= count) fail("found a format for more than {} values", count);
      append_converted(evaluator, c, several ? values.as<ListRep>().items[next] : values, out);
      ++next;
    }
  }
  if (next < count && !values.is(Kind::Dict)) fail("found {} values for a format that takes {}", count, next);
  out.append(text, from, text.size());
  return make_string(budget, std::move(out));
}

Value brace_formatted(Evaluator& evaluator, const Value& format, const Arguments& arguments) {
  const Text& text = text_of(format);
  const std::string_view bytes = text.bytes();
  Budget& budget = evaluator.budget();
  Text out;
  size_t next = 0, from = 0;
  budget.scan(bytes.size());
  for (size_t at = bytes.find_first_of("{}"); at != std::string_view::npos; at = bytes.find_first_of("{}", from)) {
    budget.step();
    budget.ask(out.size());
    out.append(text, from, at);
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
      out.append(text, at, at + 1);
      from = at + 2;
      continue;
    }
    const size_t close = bytes[at] == '{' ? bytes.find('}', at) : std::string_view::npos;
    if (close == std::string_view::npos) fail("format: found a brace without its other one");
    const std::string_view field = bytes.substr(at + 1, close - at - 1);
    if (field.find_first_of("{:!") != std::string_view::npos)
      fail("format: found the field '{}', expected one without a specification", field.substr(0, 60));
    append_str(budget, field_value(evaluator, field, arguments, next), out);
    from = close + 1;
  }
  out.append(text, from, text.size());
  return make_string(budget, std::move(out));
}

}  // namespace snug::jinja
