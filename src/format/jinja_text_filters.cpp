// Defines filters of a single value: texts, numbers, JSON.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "format/jinja_eval.h"
#include "format/jinja_format.h"
#include "format/jinja_methods.h"

namespace snug::jinja {
namespace {

using Call = BuiltinCall;

Value made(Call& call, Text text, bool safe = false) { return make_string(call.budget, std::move(text), safe); }

template <Case which>
Value cased(Call& call) {
  const Value text = to_string(call.budget, call.self);
  call.budget.rewrite(text_of(text).size());
  return made(call, in_case(text_of(text), which), is_safe(call.self));
}

// A word begins at the start and behind spaces, hyphens and opening brackets, unlike for str.title().
Value title(Call& call) {
  const Value subject = to_string(call.budget, call.self);
  const Text& text = text_of(subject);
  Text out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const size_t next = next_code_point(text.bytes(), at);
    const char32_t c = code_point_between(text.bytes(), at, next);
    const bool separates = is_python_space(c) ||
                           (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
    call.budget.step(2);
    out.append(in_case(text.slice(at, next), begins ? Case::Upper : Case::Lower));
    begins = separates;
    at = next;
  }
  return made(call, std::move(out));
}

Value trim(Call& call) {
  const Value text = to_string(call.budget, call.self);
  std::optional<std::string_view> characters;
  if (call.given[0] && !call.given[0]->is(Kind::None)) {
    characters = string_of(*call.given[0], "trim");
    call.budget.rewrite(characters->size() * 4);  // they are sorted
  }
  const Range kept = strip(view_of(text), characters, Sides::Both);
  call.budget.scan(view_of(text).size() - (kept.end - kept.begin));
  if (kept.begin == 0 && kept.end == view_of(text).size()) return text;
  return made(call, text_of(text).slice(kept.begin, kept.end), is_safe(call.self));
}

Value replace(Call& call) {
  const Value text = to_string(call.budget, call.self);
  const Value from = to_string(call.budget, *call.given[0]), to = to_string(call.budget, *call.given[1]);
  const bool limited = call.given[2] && !call.given[2]->is(Kind::None);
  return replaced_string(call.budget, text, view_of(from), text_of(to),
                         limited ? integer_of(*call.given[2], "replace") : -1);
}

Value indent(Call& call) {
  const Value subject = to_string(call.budget, call.self);
  const Text& text = text_of(subject);
  Text indention(std::string(4, ' '));
  if (call.given[0] && call.given[0]->is(Kind::String)) {
    indention = text_of(*call.given[0]);
  } else if (call.given[0]) {
    const int64_t width = integer_of(*call.given[0], "indent");
    if (width > 10'000) fail("indent: found a width of {}, expected at most 10000", width);
    indention = Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
  }
  const bool blank = flag(call, 2, false);
  call.budget.ask(text.size() * sizeof(Range));
  call.budget.scan(text.size());
  std::vector<Range> lines = lines_of(text.bytes(), /*keep_ends=*/false);
  // Here a last line without a newline ends a line, and so does a newline; an empty text is a line.
  if (text.empty() || ends_line(text.bytes())) lines.push_back({text.size(), text.size()});
  call.budget.ask(text.size() + lines.size() * (indention.size() + 1));
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", text.mark_at(lines[i - 1].end));
    if (i == 0 ? flag(call, 1, false) : blank || lines[i].begin < lines[i].end) out.append(indention);
    out.append(text, lines[i].begin, lines[i].end);
  }
  return made(call, std::move(out));
}

Value center(Call& call) {
  const Value text = to_string(call.budget, call.self);
  return padded(call.budget, text, call.given[0] ? integer_of(*call.given[0], "center") : 80, " ", Sides::Both);
}

Value escape(Call& call) {
  if (is_safe(call.self)) return call.self;
  const Value text = to_string(call.budget, call.self);
  call.budget.ask(text_of(text).size() * 5);
  call.budget.rewrite(text_of(text).size());
  return made(call, html_escaped(text_of(text)), true);
}

Value safe(Call& call) {
  if (is_safe(call.self)) return call.self;
  const Value text = to_string(call.budget, call.self);
  return made(call, text_of(text), true);
}

Value string(Call& call) { return call.self.is(Kind::String) ? call.self : to_string(call.budget, call.self); }

Value format(Call& call) {
  const Value text = to_string(call.budget, call.self);
  if (call.arguments.named.empty())
    return printf_formatted(call.evaluator, text, make_list(call.budget, call.arguments.positional, Sequence::Tuple));
  if (!call.arguments.positional.empty()) fail("format: found arguments with names and without");
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, value] : call.arguments.named)
    entries.emplace_back(make_string(call.budget, Text(std::string(name))), value);
  return printf_formatted(call.evaluator, text, make_dict(call.budget, std::move(entries)));
}

Value wordcount(Call& call) {
  const Value text = to_string(call.budget, call.self);
  call.budget.rewrite(view_of(text).size());
  return Value(static_cast<int64_t>(words_of(view_of(text))));
}

// --- Numbers

Value otherwise(const Call& call, Value value) { return call.given[0] ? *call.given[0] : std::move(value); }

std::string trimmed_number(std::string_view text) {
  const Range kept = strip(text, {}, Sides::Both);
  text = text.substr(kept.begin, kept.end - kept.begin);
  if (text.starts_with('+') && text.find_first_of("+-", 1) != 1) text.remove_prefix(1);
  const auto counts = [&](size_t at) { return std::isalnum(static_cast<unsigned char>(text[at])) != 0; };
  std::string digits;
  for (size_t at = 0; at < text.size(); ++at) {
    if (static_cast<unsigned char>(text[at]) >= 0x80) {
      const size_t next = next_code_point(text, at);
      const char32_t c = code_point_between(text, at, next);
      if (is_decimal(c)) {
        digits += static_cast<char>('0' + decimal_value(c));
      } else {
        digits += text.substr(at, next - at);
      }
      at = next - 1;
      continue;
    }
    const bool between = at > 0 && at + 1 < text.size() && counts(at - 1) && counts(at + 1);
    if (text[at] != '_' || !between) digits += text[at];
  }
  return digits;
}

std::optional<int64_t> parsed_integer(std::string_view text, int64_t base) {
  std::string digits = trimmed_number(text);
  const bool negative = digits.starts_with('-');
  if (negative) digits.erase(0, 1);
  constexpr std::array<std::pair<int64_t, std::string_view>, 3> kPrefixes = {{{16, "0x"}, {8, "0o"}, {2, "0b"}}};
  for (const auto& [of, prefix] : kPrefixes) {
    if ((base == of || base == 0) && digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == prefix[1]) {
      digits.erase(0, 2);
      base = of;
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) fail("int: found the base {}, expected 2 to 36", base);
  if (negative) digits.insert(0, "-");
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (end != digits.data() + digits.size() || digits.empty()) return {};
  if (error == std::errc::result_out_of_range) fail("int: found {}, which 64 bits do not hold", digits.substr(0, 60));
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<double> parsed_float(std::string_view text) {
  const std::string digits = trimmed_number(text);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size() || digits.empty()) return {};
  if (error == std::errc::result_out_of_range) return std::strtod(digits.c_str(), nullptr);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> truncated(double value) {
  if (std::isinf(value)) fail("int: found an infinite float");
  if (std::isnan(value)) return {};
  if (!(value > -9.2e18 && value < 9.2e18)) fail("int: found {}, which 64 bits do not hold", value);
  return static_cast<int64_t>(value);
}

Value to_int(Call& call) {
  refuse_undefined(call.self);
  if (call.self.is(Kind::String)) call.budget.rewrite(view_of(call.self).size());
  if (call.self.is(Kind::BigInt)) return call.self;
  std::optional<int64_t> value;
  if (call.self.is_integral()) value = call.self.integer();
  if (call.self.is(Kind::Float)) value = truncated(call.self.real());
  if (call.self.is(Kind::String)) {
    value = parsed_integer(view_of(call.self), call.given[1] ? integer_of(*call.given[1], "int") : 10);
    if (const auto real = value ? std::nullopt : parsed_float(view_of(call.self)); real && std::isfinite(*real))
      value = truncated(*real);
  }
  return value ? Value(*value) : otherwise(call, Value(int64_t{0}));
}

Value to_float(Call& call) {
  refuse_undefined(call.self);
  if (call.self.is(Kind::String)) call.budget.rewrite(view_of(call.self).size());
  if (call.self.is_number()) return Value(call.self.real());
  if (call.self.is(Kind::BigInt)) return Value(std::strtod(call.self.as<BigIntRep>().digits.c_str(), nullptr));
  const auto value = call.self.is(Kind::String) ? parsed_float(view_of(call.self)) : std::nullopt;
  return value ? Value(*value) : otherwise(call, Value(0.0));
}

Value absolute(Call& call) {
  refuse_undefined(call.self);
  if (!call.self.is_number()) fail("abs: found a {}, expected a number", type_name(call.self));
  if (call.self.is(Kind::Float)) return Value(std::fabs(call.self.real()));
  if (call.self.integer() == INT64_MIN) fail("abs: found {}, which 64 bits do not hold", call.self.integer());
  return Value(std::abs(call.self.integer()));
}

Value round(Call& call) {
  refuse_undefined(call.self);
  if (!call.self.is_number()) fail("round: found a {}, expected a number", type_name(call.self));
  const int64_t precision = call.given[0] ? integer_of(*call.given[0], "round") : 0;
  if (precision < -300 || precision > 300) fail("round: found a precision of {}", precision);
  const std::string_view method = call.given[1] ? string_of(*call.given[1], "round") : "common";
  const double value = call.self.real(), scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "common") {
    if (call.self.is_integral() && precision >= 0) return Value(call.self.integer());
    if (!std::isfinite(value)) return Value(value);
    if (precision < 0) {
      const double scaled = std::nearbyint(value * scale) / scale;
      return call.self.is_integral() ? Value(static_cast<int64_t>(scaled)) : Value(scaled);
    }
    char digits[700];
    std::snprintf(digits, sizeof digits, "%.*f", static_cast<int>(precision), value);
    return Value(std::strtod(digits, nullptr));
  }
  if (method != "ceil" && method != "floor")
    fail("round: found the method '{}', expected common, ceil or floor", method.substr(0, 60));
  const double scaled = value * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value otherwise_default(Call& call) {
  if (call.self.is(Kind::Undefined) || (flag(call, 1, false) && !truth(call.self)))
    return call.given[0] ? *call.given[0] : made(call, Text());
  return call.self;
}

Value to_json(Call& call) {
  JsonStyle style{.ensure_ascii = flag(call, 0, false), .sort_keys = flag(call, 3, false)};
  if (const Value* const indention = call.given[1]; indention && !indention->is(Kind::None)) {
    style.lines = true;
    style.item_separator = ",";
    if (indention->is(Kind::String)) {
      call.budget.ask(view_of(*indention).size());
      style.indent = view_of(*indention);
    } else {
      const int64_t width = integer_of(*indention, "tojson");
      if (width > 1000) fail("tojson: found an indent of {}, expected at most 1000", width);
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (const Value* const separators = call.given[2]; separators && !separators->is(Kind::None)) {
    const std::vector<Value> both = call.evaluator.items_of(*separators);
    if (both.size() != 2) fail("tojson: found {} separators, expected 2", both.size());
    call.budget.ask(string_of(both[0], "tojson").size() + string_of(both[1], "tojson").size());
    style.item_separator = string_of(both[0], "tojson");
    style.key_separator = string_of(both[1], "tojson");
  }
  Text out;
  append_json(call.budget, call.self, style, out);
  return made(call, std::move(out));
}

}  // namespace

std::vector<Builtin> text_filters() {
  return {{"upper", cased<Case::Upper>},
          {"lower", cased<Case::Lower>},
          {"capitalize", cased<Case::Capitalize>},
          {"title", title},
          {"trim", trim, 0, {"chars"}},
          {"replace", replace, 2, {"old", "new", "count"}},
          {"indent", indent, 0, {"width", "first", "blank"}},
          {"center", center, 0, {"width"}},
          {"escape", escape},
          {"e", escape},
          {"safe", safe},
          {"string", string},
          {"format", format, 0, {}, true},
          {"wordcount", wordcount},
          {"int", to_int, 0, {"default", "base"}},
          {"float", to_float, 0, {"default"}},
          {"abs", absolute},
          {"round", round, 0, {"precision", "method"}},
          {"default", otherwise_default, 0, {"default_value", "boolean"}},
          {"d", otherwise_default, 0, {"default_value", "boolean"}},
          {"tojson", to_json, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}}};
}

}  // namespace snug::jinja
