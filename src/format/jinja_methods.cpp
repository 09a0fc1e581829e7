// Defines methods of strings, lists and dictionaries.
#include "format/jinja_methods.h"

#include <algorithm>
#include <array>
#include <utility>

#include "format/jinja_eval.h"
#include "format/jinja_format.h"
#include "format/unicode.h"

namespace snug::jinja {
namespace {

using Call = BuiltinCall;

Value made(Call& call, Text text) { return make_string(call.budget, std::move(text), is_safe(call.self)); }
Value part(Call& call, size_t begin, size_t end) { return made(call, text_of(call.self).slice(begin, end)); }

// Returns the text of an argument; it lies in the argument's value.
std::string_view needle(Call& call, size_t parameter) {
  const std::string_view text = string_of(*call.given[parameter], "a string's method");
  call.budget.scan(view_of(call.self).size() + text.size());
  return text;
}

template <Case which>
Value cased(Call& call) {
  call.budget.rewrite(view_of(call.self).size());
  return made(call, in_case(text_of(call.self), which));
}

template <Sides sides>
Value stripped(Call& call) {
  std::optional<std::string_view> characters;
  if (call.given[0] && !call.given[0]->is(Kind::None)) {
    characters = needle(call, 0);
    call.budget.rewrite(characters->size() * 4);  // they are sorted
  }
  const Range kept = strip(view_of(call.self), characters, sides);
  call.budget.scan(view_of(call.self).size() - (kept.end - kept.begin));
  if (kept.begin == 0 && kept.end == view_of(call.self).size()) return call.self;
  return part(call, kept.begin, kept.end);
}

// Returns whether the text begins or ends with a text, or one of a tuple.
template <bool begins>
Value has_affix(Call& call) {
  const auto has = [&](const Value& affix) {
    const std::string_view text = string_of(affix, begins ? "startswith" : "endswith");
    call.budget.step();
    if (text.size() <= view_of(call.self).size()) call.budget.read(text.size());
    return begins ? view_of(call.self).starts_with(text) : view_of(call.self).ends_with(text);
  };
  if (!is_sequence(*call.given[0], Sequence::Tuple)) return Value(has(*call.given[0]));
  return Value(std::ranges::any_of(call.given[0]->as<ListRep>().items, has));
}

template <bool prefix>
Value without_affix(Call& call) {
  const std::string_view text = view_of(call.self), affix = needle(call, 0);
  if (affix.empty() || !(prefix ? text.starts_with(affix) : text.ends_with(affix))) return call.self;
  return prefix ? part(call, affix.size(), text.size()) : part(call, 0, text.size() - affix.size());
}

int64_t limit_of(Call& call, size_t parameter) {
  return call.given[parameter] ? integer_of(*call.given[parameter], "a string's method") : -1;
}

bool space_at(std::string_view text, size_t begin, size_t end) {
  const char32_t c = code_point_between(text, begin, end);
  return is_python_space(c) && (c < 0x80 || end - begin > 1);
}

// Splits into words between white space, at most `limit` times, from the left.
std::vector<Range> words(std::string_view text, int64_t limit) {
  std::vector<Range> out;
  for (size_t at = strip(text, {}, Sides::Left).begin; at < text.size();) {
    if (limit >= 0 && out.size() >= static_cast<size_t>(limit)) {
      out.push_back({at, text.size()});
      return out;
    }
    size_t end = at;
    while (end < text.size() && !space_at(text, end, next_code_point(text, end))) end = next_code_point(text, end);
    out.push_back({at, end});
    at = end + strip(text.substr(end), {}, Sides::Left).begin;
  }
  return out;
}

// Splits into words from the right.
std::vector<Range> words_from_right(std::string_view text, int64_t limit) {
  std::vector<Range> out;
  for (size_t end = strip(text, {}, Sides::Right).end; end > 0;) {
    if (limit >= 0 && out.size() >= static_cast<size_t>(limit)) {
      out.push_back({0, end});
      break;
    }
    size_t at = end;
    while (at > 0 && !space_at(text, previous_code_point(text, at), at)) at = previous_code_point(text, at);
    out.push_back({at, end});
    end = strip(text.substr(0, at), {}, Sides::Right).end;
  }
  std::ranges::reverse(out);
  return out;
}

std::vector<Range> split_at(std::string_view text, std::string_view separator, int64_t limit, bool from_right) {
  if (separator.empty()) fail("split: found an empty separator");
  std::vector<Range> out;
  if (from_right) {
    const SearchFromRight search(text, separator);
    size_t end = text.size();
    while (limit < 0 || out.size() < static_cast<size_t>(limit)) {
      const size_t hit = search.before(end);
      if (hit == std::string_view::npos) break;
      out.push_back({hit + separator.size(), end});
      end = hit;
    }
    out.push_back({0, end});
    std::ranges::reverse(out);
    return out;
  }
  size_t at = 0;
  while (limit < 0 || out.size() < static_cast<size_t>(limit)) {
    const size_t hit = find_text(text, separator, at);
    if (hit == std::string_view::npos) break;
    out.push_back({at, hit});
    at = hit + separator.size();
  }
  out.push_back({at, text.size()});
  return out;
}

Value parts(Call& call, const std::vector<Range>& ranges) {
  std::vector<Value> items;
  call.budget.ask(ranges.size() * sizeof(Value));
  items.reserve(ranges.size());
  for (const Range& range : ranges) items.push_back(part(call, range.begin, range.end));
  return make_list(call.budget, std::move(items));
}

template <bool from_right>
Value split(Call& call) {
  const std::string_view text = view_of(call.self);
  call.budget.ask(text.size() * sizeof(Range));
  call.budget.scan(text.size());
  const int64_t limit = limit_of(call, 1);
  if (!call.given[0] || call.given[0]->is(Kind::None))
    return parts(call, from_right ? words_from_right(text, limit) : words(text, limit));
  return parts(call, split_at(text, needle(call, 0), limit, from_right));
}

Value splitlines(Call& call) {
  call.budget.ask(view_of(call.self).size() * sizeof(Range));
  call.budget.scan(view_of(call.self).size());
  return parts(call, lines_of(view_of(call.self), flag(call, 0, false)));
}

template <bool from_right>
Value partition(Call& call) {
  const std::string_view text = view_of(call.self), separator = needle(call, 0);
  if (separator.empty()) fail("partition: found an empty separator");
  const size_t hit = from_right ? SearchFromRight(text, separator).before(text.size()) : find_text(text, separator);
  std::vector<Range> ranges;
  if (hit != std::string_view::npos) {
    ranges = {{0, hit}, {hit, hit + separator.size()}, {hit + separator.size(), text.size()}};
  } else {
    const Range all{0, text.size()}, none{0, 0};
    ranges = from_right ? std::vector{none, none, all} : std::vector{all, none, none};
  }
  Value out = parts(call, ranges);
  out.as<ListRep>().sequence = Sequence::Tuple;
  return out;
}

// Returns the code point at which a text is found, or -1; with `must` it fails instead.
template <bool from_right, bool must>
Value find(Call& call) {
  const std::string_view text = view_of(call.self), found = needle(call, 0);
  const size_t hit = from_right ? SearchFromRight(text, found).before(text.size()) : find_text(text, found);
  if (hit != std::string_view::npos) return Value(static_cast<int64_t>(count_code_points(text.substr(0, hit))));
  if (must) fail("index: found no '{}' in the string", found.substr(0, 60));
  return Value(int64_t{-1});
}

Value count(Call& call) {
  const std::string_view text = view_of(call.self), found = needle(call, 0);
  if (found.empty()) return Value(static_cast<int64_t>(count_code_points(text) + 1));
  int64_t times = 0;
  for (size_t at = find_text(text, found); at != std::string_view::npos; at = find_text(text, found, at + found.size()))
    ++times;
  return Value(times);
}

Value replace(Call& call) {
  return replaced_string(call.budget, call.self, needle(call, 0), text_of(*call.given[1]), limit_of(call, 2));
}

Value checked_replace(Call& call) {
  string_of(*call.given[1], "replace");
  return replace(call);
}

Value join(Call& call) {
  const std::vector<Value> items = call.evaluator.items_of(*call.given[0]);
  Output out(call.budget);
  for (size_t i = 0; i < items.size(); ++i) {
    string_of(items[i], "join");
    if (i > 0) out.text().append(text_of(call.self));
    out.text().append(text_of(items[i]));
    out.count();
  }
  return make_string(call.budget, std::move(out.text()));
}

template <Sides side>
Value justified(Call& call) {
  const std::string_view fill = call.given[1] ? string_of(*call.given[1], "a string's method") : " ";
  return padded(call.budget, call.self, integer_of(*call.given[0], "a string's method"), fill, side);
}

Value zfill(Call& call) {
  const Text& text = text_of(call.self);
  const bool sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  const int64_t width = integer_of(*call.given[0], "zfill") - (sign ? 1 : 0);
  const Value rest = part(call, sign ? 1 : 0, text.size());
  return call.evaluator.binary(Op::Add, part(call, 0, sign ? 1 : 0),
                               padded(call.budget, rest, width, "0", Sides::Left));
}

Value format(Call& call) { return brace_formatted(call.evaluator, call.self, call.arguments); }

// Returns whether there are characters, and all of them are of a kind.
template <bool (*is)(char32_t), bool of_empty = false>
Value all_are(Call& call) {
  const std::string_view text = view_of(call.self);
  call.budget.scan(text.size());
  if (text.empty()) return Value(of_empty);
  for (size_t at = 0; at < text.size();) {
    const size_t next = next_code_point(text, at);
    if (!is(code_point_between(text, at, next))) return Value(false);
    at = next;
  }
  return Value(true);
}

// Returns whether a character is a digit for Python: decimals, and what Unicode gives a digit's value besides.
bool is_digit(char32_t c) {
  constexpr auto kDigits = std::to_array<std::pair<char32_t, char32_t>>(
      {{0xb2, 0xb3},     {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
       {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
       {0x24ea, 0x24ea}, {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
       {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}});
  return is_decimal(c) ||
         std::ranges::any_of(kDigits, [&](const auto& range) { return c >= range.first && c <= range.second; });
}
bool is_numeric(char32_t c) { return (code_point_properties(c) & kNumeric) != 0; }
bool is_letter(char32_t c) { return is_in(c, kLetter); }
bool is_letter_or_number(char32_t c) { return is_letter(c) || is_numeric(c); }
bool is_ascii(char32_t c) { return c < 0x80; }

template <Case which>
Value is_in_case(Call& call) {
  call.budget.rewrite(view_of(call.self).size() * 2);
  const std::string lower = in_case(text_of(call.self), Case::Lower).bytes();
  const std::string upper = in_case(text_of(call.self), Case::Upper).bytes();
  return Value(view_of(call.self) == (which == Case::Lower ? lower : upper) && lower != upper);
}

// --- Dictionaries and lists

Value get(Call& call) {
  if (!hashes(call.budget, *call.given[0]))
    fail("get: found a {} as a key, expected a value that hashes", type_name(*call.given[0]));
  if (const Value* const found = call.self.as<DictRep>().find(call.budget, *call.given[0])) return *found;
  return call.given[1] ? *call.given[1] : Value::none();
}

enum class Of { Keys, Values, Items };
constexpr std::array kSequences{Sequence::Keys, Sequence::Values, Sequence::Items};

template <Of which>
Value view(Call& call) {
  const auto& entries = call.self.as<DictRep>().entries;
  std::vector<Value> out;
  call.budget.ask(entries.size() * sizeof(Value));
  out.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    if (which == Of::Items) {
      out.push_back(make_list(call.budget, {key, value}, Sequence::Tuple));
    } else {
      out.push_back(which == Of::Keys ? key : value);
    }
  }
  return make_list(call.budget, std::move(out), kSequences[static_cast<size_t>(which)]);
}

Value itself(Call& call) { return call.self; }

Value list_index(Call& call) {
  const auto& items = call.self.as<ListRep>().items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(call.budget, items[i], *call.given[0])) return Value(static_cast<int64_t>(i));
  }
  fail("index: found no such item in the list");
}

Value list_count(Call& call) {
  const auto& items = call.self.as<ListRep>().items;
  return Value(std::ranges::count_if(items, [&](const Value& v) { return equal(call.budget, v, *call.given[0]); }));
}

std::vector<MethodSet> methods() {
  std::vector<MethodSet> out;
  const auto text = [&](std::string_view name, Value (*run)(Call&), size_t required = 0,
                        std::array<std::string_view, kMaxParameters> parameters = {}, bool variadic = false) {
    out.push_back({.name = name, .string = {name, run, required, parameters, variadic}});
  };
  text("capitalize", cased<Case::Capitalize>);
  text("casefold", cased<Case::Lower>);
  text("center", justified<Sides::Both>, 1, {"width", "fillchar"});
  text("count", count, 1, {"sub"});
  text("endswith", has_affix<false>, 1, {"suffix"});
  text("find", find<false, false>, 1, {"sub"});
  text("format", format, 0, {}, true);
  text("index", find<false, true>, 1, {"sub"});
  text("isalnum", all_are<is_letter_or_number>);
  text("isalpha", all_are<is_letter>);
  text("isascii", all_are<is_ascii, true>);
  text("isdecimal", all_are<is_decimal>);
  text("isdigit", all_are<is_digit>);
  text("islower", is_in_case<Case::Lower>);
  text("isnumeric", all_are<is_numeric>);
  text("isprintable", all_are<is_python_printable, true>);
  text("isspace", all_are<is_python_space>);
  text("isupper", is_in_case<Case::Upper>);
  text("join", join, 1, {"iterable"});
  text("ljust", justified<Sides::Right>, 1, {"width", "fillchar"});
  text("lower", cased<Case::Lower>);
  text("lstrip", stripped<Sides::Left>, 0, {"chars"});
  text("partition", partition<false>, 1, {"sep"});
  text("removeprefix", without_affix<true>, 1, {"prefix"});
  text("removesuffix", without_affix<false>, 1, {"suffix"});
  text("replace", checked_replace, 2, {"old", "new", "count"});
  text("rfind", find<true, false>, 1, {"sub"});
  text("rindex", find<true, true>, 1, {"sub"});
  text("rjust", justified<Sides::Left>, 1, {"width", "fillchar"});
  text("rpartition", partition<true>, 1, {"sep"});
  text("rsplit", split<true>, 0, {"sep", "maxsplit"});
  text("rstrip", stripped<Sides::Right>, 0, {"chars"});
  text("split", split<false>, 0, {"sep", "maxsplit"});
  text("splitlines", splitlines, 0, {"keepends"});
  text("startswith", has_affix<true>, 1, {"prefix"});
  text("strip", stripped<Sides::Both>, 0, {"chars"});
  text("swapcase", cased<Case::Swap>);
  text("title", cased<Case::Title>);
  text("upper", cased<Case::Upper>);
  text("zfill", zfill, 1, {"width"});
  const auto named = [&](std::string_view name) -> MethodSet& {
    const auto found = std::ranges::find(out, name, &MethodSet::name);
    return found != out.end() ? *found : out.emplace_back(MethodSet{.name = name});
  };
  named("get").dict = {"get", get, 1, {"key", "default"}};
  named("keys").dict = {"keys", view<Of::Keys>};
  named("values").dict = {"values", view<Of::Values>};
  named("items").dict = {"items", view<Of::Items>};
  named("copy").dict = {"copy", itself};
  named("copy").list = {"copy", itself};
  named("index").list = {"index", list_index, 1, {"value"}};
  named("count").list = {"count", list_count, 1, {"value"}};
  std::ranges::sort(out, {}, &MethodSet::name);
  return out;
}

}  // namespace

const MethodSet* find_methods(std::string_view name) {
  static const std::vector<MethodSet> kMethods = methods();
  const auto found = std::ranges::lower_bound(kMethods, name, {}, &MethodSet::name);
  return found != kMethods.end() && found->name == name ? &*found : nullptr;
}

const Builtin* MethodSet::of(const Value& v) const {
  const Builtin* const found = v.is(Kind::String)                                                  ? &string
                               : v.is(Kind::Dict)                                                  ? &dict
                               : is_sequence(v, Sequence::List) || is_sequence(v, Sequence::Tuple) ? &list
                                                                                                   : nullptr;
  return found && found->run ? found : nullptr;
}

std::vector<Range> lines_of(std::string_view text, bool keep_ends) {
  std::vector<Range> out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    size_t next = next_code_point(text, at);
    const char32_t c = code_point_between(text, at, next);
    const bool wide = next - at > 1;
    if ((c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || (wide && (c == 0x85 || c == 0x2028 || c == 0x2029))) {
      const size_t end = at;
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      out.push_back({begin, keep_ends ? next : end});
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) out.push_back({begin, text.size()});
  return out;
}

bool ends_line(std::string_view text) {
  const std::vector<Range> last =
      lines_of(text.substr(text.empty() ? 0 : previous_code_point(text, text.size())), false);
  return !last.empty() && last[0].begin == last[0].end && !text.ends_with('\r');
}

Value replaced_string(Budget& budget, const Value& text, std::string_view from, const Text& to, int64_t limit) {
  budget.scan(view_of(text).size() + from.size());
  if (!from.empty() && find_text(view_of(text), from) == std::string_view::npos) return text;
  budget.rewrite(view_of(text).size() / std::max<size_t>(from.size(), 1));
  budget.ask(replaced_size(view_of(text), from, to.size(), limit));
  return make_string(budget, replaced(text_of(text), from, to, limit), is_safe(text));
}

Value padded(Budget& budget, const Value& text, int64_t width, std::string_view fill, Sides side) {
  budget.scan(view_of(text).size() + fill.size());
  const auto count = static_cast<int64_t>(count_code_points(view_of(text)));
  if (count_code_points(fill) != 1) fail("found '{}' to fill with, expected one character", fill.substr(0, 60));
  if (width <= count) return text;
  const int64_t pad = width - count;
  if (pad > int64_t{1} << 32) fail("found a width of {}", width);
  budget.ask(static_cast<uint64_t>(pad) * fill.size());
  budget.scan(static_cast<uint64_t>(pad));
  // If the two sides cannot be equal, Python's choice.
  const int64_t left = side == Sides::Left ? pad : side == Sides::Right ? 0 : pad / 2 + (pad & width & 1);
  Text out;
  const auto add = [&](int64_t times) {
    for (int64_t i = 0; i < times; ++i) out.append(fill, text_of(text).mark_at(0));
  };
  add(left);
  out.append(text_of(text));
  add(pad - left);
  return make_string(budget, std::move(out));
}

size_t words_of(std::string_view text) {
  size_t words = 0;
  bool within = false;
  for (size_t at = 0; at < text.size();) {
    const size_t next = next_code_point(text, at);
    const bool word = (code_point_properties(code_point_between(text, at, next)) & kWord) != 0;
    if (word && !within) ++words;
    within = word;
    at = next;
  }
  return words;
}

}  // namespace snug::jinja
