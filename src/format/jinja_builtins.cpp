#include "format/jinja_builtins.h"

#include <algorithm>
#include <ctime>

#include "format/jinja_eval.h"

namespace snug::jinja {
namespace {

using Call = BuiltinCall;

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

Value constant(bool b) { return Value(b); }

// Runs a test of the value alone.
template <bool (*holds)(const Value&)>
Value test_of(Call& call) {
  return constant(holds(call.self));
}

bool is_defined(const Value& v) { return !v.is(Kind::Undefined); }
bool is_undefined(const Value& v) { return v.is(Kind::Undefined); }
bool is_none(const Value& v) { return v.is(Kind::None); }
bool is_boolean(const Value& v) { return v.is(Kind::Bool); }
bool is_true(const Value& v) { return v.is(Kind::Bool) && v.integer() != 0; }
bool is_false(const Value& v) { return v.is(Kind::Bool) && v.integer() == 0; }
bool is_whole(const Value& v) { return v.is(Kind::Int) || v.is(Kind::BigInt); }
bool is_float(const Value& v) { return v.is(Kind::Float); }
bool is_any_number(const Value& v) { return v.is_number() || v.is(Kind::BigInt); }
bool is_string(const Value& v) { return v.is(Kind::String); }
bool is_mapping(const Value& v) { return v.is(Kind::Dict); }
bool is_callable(const Value& v) { return v.is(Kind::Function) || v.is(Kind::Undefined); }
bool is_a_sequence(const Value& v) {
  if (v.is(Kind::List)) return v.as<ListRep>().sequence < Sequence::Iterator;
  return v.is(Kind::Undefined) || v.is(Kind::String) || v.is(Kind::Dict);
}
bool is_iterable(const Value& v) {
  return v.is(Kind::Undefined) || v.is(Kind::String) || v.is(Kind::List) || v.is(Kind::Dict);
}

// Returns whether a text has letters, and all are of one case.
Value in_lower(Call& call) {
  const Value text = to_string(call.budget, call.self);
  call.budget.rewrite(view_of(text).size() * 2);
  const std::string lower = in_case(text_of(text), Case::Lower).bytes(),
                    upper = in_case(text_of(text), Case::Upper).bytes();
  return constant(view_of(text) == lower && lower != upper);
}

Value in_upper(Call& call) {
  const Value text = to_string(call.budget, call.self);
  call.budget.rewrite(view_of(text).size() * 2);
  const std::string lower = in_case(text_of(text), Case::Lower).bytes(),
                    upper = in_case(text_of(text), Case::Upper).bytes();
  return constant(view_of(text) == upper && lower != upper);
}

Value is_equal(Call& call) { return constant(equal(call.budget, call.self, *call.given[0])); }
Value is_unequal(Call& call) { return constant(!equal(call.budget, call.self, *call.given[0])); }
Value is_less(Call& call) { return constant(compare(call.budget, call.self, *call.given[0]) < 0); }
Value is_at_most(Call& call) { return constant(compare(call.budget, call.self, *call.given[0]) <= 0); }
Value is_greater(Call& call) { return constant(compare(call.budget, call.self, *call.given[0]) > 0); }
Value is_at_least(Call& call) { return constant(compare(call.budget, call.self, *call.given[0]) >= 0); }
Value is_in(Call& call) { return constant(call.evaluator.contains(*call.given[0], call.self)); }

Value is_same(Call& call) {
  const Value &a = call.self, &b = *call.given[0];
  if (a.kind() != b.kind()) return constant(false);
  if (a.kind() > Kind::String) return constant(a.rep() == b.rep());
  return constant(equal(call.budget, a, b));
}

Value modulo(Call& call, const Value& by) { return call.evaluator.binary(Op::Modulo, call.self, by); }
Value is_odd(Call& call) { return constant(equal(call.budget, modulo(call, Value(int64_t{2})), Value(int64_t{1}))); }
Value is_even(Call& call) { return constant(equal(call.budget, modulo(call, Value(int64_t{2})), Value(int64_t{0}))); }
Value is_divisible(Call& call) { return constant(equal(call.budget, modulo(call, *call.given[0]), Value(int64_t{0}))); }

Value is_filter(Call& call) { return constant(find_filter(string_of(call.self, "filter"))); }
Value is_test(Call& call) { return constant(find_test(string_of(call.self, "test"))); }
bool is_escaped(const Value& v) { return is_safe(v); }

std::vector<Builtin> tests() {
  std::vector<Builtin> out = {{"defined", test_of<is_defined>},
                              {"undefined", test_of<is_undefined>},
                              {"none", test_of<is_none>},
                              {"boolean", test_of<is_boolean>},
                              {"true", test_of<is_true>},
                              {"false", test_of<is_false>},
                              {"integer", test_of<is_whole>},
                              {"float", test_of<is_float>},
                              {"number", test_of<is_any_number>},
                              {"string", test_of<is_string>},
                              {"mapping", test_of<is_mapping>},
                              {"sequence", test_of<is_a_sequence>},
                              {"iterable", test_of<is_iterable>},
                              {"callable", test_of<is_callable>},
                              {"escaped", test_of<is_escaped>},
                              {"lower", in_lower},
                              {"upper", in_upper},
                              {"odd", is_odd},
                              {"even", is_even},
                              {"filter", is_filter},
                              {"test", is_test}};
  const auto add = [&](std::initializer_list<std::string_view> names, Value (*run)(Call&)) {
    for (const std::string_view name : names) out.push_back({name, run, 1, {"other"}});
  };
  add({"==", "eq", "equalto"}, is_equal);
  add({"!=", "ne"}, is_unequal);
  add({"<", "lt", "lessthan"}, is_less);
  add({"<=", "le"}, is_at_most);
  add({">", "gt", "greaterthan"}, is_greater);
  add({">=", "ge"}, is_at_least);
  add({"in"}, is_in);
  add({"sameas"}, is_same);
  add({"divisibleby"}, is_divisible);
  return out;
}

Value range(Call& call) {
  const auto& given = call.arguments.positional;
  if (given.empty() || given.size() > 3 || !call.arguments.named.empty())
    fail("range: found {} arguments, expected 1 to 3", given.size());
  const int64_t first = given.size() == 1 ? 0 : integer_of(given[0], "range");
  const int64_t end = integer_of(given[given.size() == 1 ? 0 : 1], "range");
  const int64_t step = given.size() == 3 ? integer_of(given[2], "range") : 1;
  if (step == 0) fail("range: found a step of 0");
  std::vector<Value> items;
  for (int64_t i = first; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) fail("range: found more than {} numbers", kMaxRange);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  Value out = make_list(call.budget, std::move(items), Sequence::Range);
  out.as<ListRep>().end = end;
  return out;
}

Value dict(Call& call) {
  std::vector<std::pair<Value, Value>> entries;
  for (const Value& from : call.arguments.positional) {
    if (from.is(Kind::Dict)) {
      call.budget.ask(from.as<DictRep>().entries.size() * sizeof(entries[0]));
      entries = from.as<DictRep>().entries;
      continue;
    }
    for (const Value& pair : call.evaluator.items_of(from)) {
      std::vector<Value> both = call.evaluator.items_of(pair);
      if (both.size() != 2) fail("dict: found an item of {} values, expected 2", both.size());
      entries.emplace_back(std::move(both[0]), std::move(both[1]));
    }
  }
  for (auto& [name, value] : call.arguments.named)
    entries.emplace_back(make_string(call.budget, Text(std::string(name))), std::move(value));
  return make_dict(call.budget, std::move(entries));
}

Value make_namespace(Call& call) { return call.evaluator.make_namespace(call.arguments); }

Value raise_exception(Call& call) {
  const Value message = to_string(call.budget, *call.given[0]);
  fail("it refuses the conversation: {}", view_of(message).substr(0, 1000));
}

Value strftime_now(Call& call) {
  const std::string format(string_of(*call.given[0], "strftime_now"));
  char text[256];
  if (format.size() > 100) fail("strftime_now: found a format of {} bytes, expected at most 100", format.size());
  call.budget.step(100);  // it may write 100 fields
  const size_t bytes = std::strftime(text, sizeof text, format.c_str(), &call.evaluator.now());
  return make_string(call.budget, Text(std::string(text, bytes)));
}

Value cycler(Call& call) {
  if (call.arguments.positional.empty()) fail("cycler: found no arguments");
  return call.evaluator.make_object(ObjectRep::Type::Cycler, call.arguments.positional);
}

Value joiner(Call& call) {
  const Value separator = call.given[0] ? *call.given[0] : make_string(call.budget, Text(", "));
  return call.evaluator.make_object(ObjectRep::Type::Joiner, {separator});
}

std::vector<Builtin> globals() {
  return {{"range", range, 0, {}, true},
          {"dict", dict, 0, {}, true},
          {"namespace", make_namespace, 0, {}, true},
          {"raise_exception", raise_exception, 1, {"message"}},
          {"strftime_now", strftime_now, 1, {"format"}},
          {"cycler", cycler, 0, {}, true},
          {"joiner", joiner, 0, {"sep"}}};
}

// Finds a name in a table that is made once and sorted.
const Builtin* find_in(const std::vector<Builtin>& table, std::string_view name) {
  const auto found = std::ranges::lower_bound(table, name, {}, &Builtin::name);
  return found != table.end() && found->name == name ? &*found : nullptr;
}

std::vector<Builtin> sorted(std::vector<Builtin> table) {
  std::ranges::sort(table, {}, &Builtin::name);
  return table;
}

}  // namespace

Value run_builtin(const Builtin& builtin, Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Call call{.evaluator = evaluator, .budget = evaluator.budget(), .self = self, .arguments = arguments};
  evaluator.budget().step();
  if (builtin.variadic) return builtin.run(call);
  const auto& names = builtin.parameters;
  const auto count = static_cast<size_t>(std::ranges::find(names, std::string_view()) - names.begin());
  if (arguments.positional.size() > count)
    fail("{}: found {} arguments, expected at most {}", builtin.name, arguments.positional.size(), count);
  for (size_t i = 0; i < arguments.positional.size(); ++i) call.given[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at = static_cast<size_t>(std::ranges::find(names, name) - names.begin());
    if (at >= count) fail("{}: found argument '{}', which it does not take", builtin.name, name);
    if (call.given[at]) fail("{}: found argument '{}' twice", builtin.name, name);
    call.given[at] = &value;
  }
  for (size_t i = 0; i < builtin.required; ++i) {
    if (!call.given[i]) fail("{}: found no '{}', expected it", builtin.name, names[i]);
  }
  return builtin.run(call);
}

const Builtin* find_filter(std::string_view name) {
  static const std::vector<Builtin> kFilters = [] {
    std::vector<Builtin> all = text_filters(), more = sequence_filters();
    all.insert(all.end(), more.begin(), more.end());
    return sorted(std::move(all));
  }();
  return find_in(kFilters, name);
}

const Builtin* find_test(std::string_view name) {
  static const std::vector<Builtin> kTests = sorted(tests());
  return find_in(kTests, name);
}

const Builtin* find_global(std::string_view name) {
  static const std::vector<Builtin> kGlobals = sorted(globals());
  return find_in(kGlobals, name);
}

int64_t integer_of(const Value& v, std::string_view what) {
  refuse_undefined(v);
  if (!v.is_integral()) fail("{}: found a {}, expected an int", what, type_name(v));
  return v.integer();
}

std::string_view string_of(const Value& v, std::string_view what) {
  refuse_undefined(v);
  if (!v.is(Kind::String)) fail("{}: found a {}, expected a str", what, type_name(v));
  return view_of(v);
}

bool flag(const BuiltinCall& call, size_t parameter, bool otherwise) {
  return call.given[parameter] ? truth(*call.given[parameter]) : otherwise;
}

}  // namespace snug::jinja
