// Defines filters of lists and dictionaries.
#include <algorithm>
#include <charconv>

#include "format/jinja_eval.h"

namespace snug::jinja {
namespace {

using Call = BuiltinCall;

Value listed(Call& call, std::vector<Value> items, Sequence sequence = Sequence::List) {
  return make_list(call.budget, std::move(items), sequence);
}

// Returns the parts of "a.b.0", as attributes of filters name them; none for none.
std::vector<Value> path_of(Call& call, const Value* attribute) {
  std::vector<Value> parts;
  if (!attribute || attribute->is(Kind::None)) return parts;
  if (!attribute->is(Kind::String)) return {*attribute};
  std::string_view rest = view_of(*attribute);
  for (;;) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool whole = error == std::errc() && end == part.data() + part.size() && part[0] != '-';
    parts.push_back(whole ? Value(index) : make_string(call.budget, Text(std::string(part))));
    if (part.size() == rest.size()) return parts;
    rest.remove_prefix(part.size() + 1);
  }
}

Value at_path(Call& call, Value v, const std::vector<Value>& path) {
  for (const Value& part : path) v = call.evaluator.item(v, part);
  return v;
}

// Returns the key by which texts are sorted and told apart: in lower case, unless case counts.
Value without_case(Call& call, const Value& v, bool case_sensitive) {
  if (case_sensitive || !v.is(Kind::String)) return v;
  call.budget.rewrite(view_of(v).size());
  return make_string(call.budget, in_case(text_of(v), Case::Lower));
}

// Holds items with their keys. Sorting them is stable.
struct Keyed {
  std::vector<Value> keys;
  Value item;
};

void sort_by_keys(Call& call, std::vector<Keyed>& items, bool reverse) {
  const auto less = [&](const Keyed& a, const Keyed& b) {
    for (size_t i = 0; i < a.keys.size(); ++i) {
      const int order = compare(call.budget, a.keys[i], b.keys[i]);
      if (order != 0) return reverse ? order > 0 : order < 0;
    }
    return false;
  };
  std::stable_sort(items.begin(), items.end(), less);
}

std::vector<Value> items_of(std::vector<Keyed> keyed) {
  std::vector<Value> items;
  for (Keyed& k : keyed) items.push_back(std::move(k.item));
  return items;
}

std::vector<Keyed> keyed_items(Call& call, const std::vector<std::vector<Value>>& paths, bool case_sensitive) {
  std::vector<Keyed> out;
  std::vector<Value> items = call.evaluator.items_of(call.self);
  call.budget.ask(items.size() * (sizeof(Keyed) + (paths.size() + 1) * sizeof(Value)));
  for (Value& item : items) {
    Keyed keyed;
    for (const auto& path : paths) keyed.keys.push_back(without_case(call, at_path(call, item, path), case_sensitive));
    keyed.item = std::move(item);
    out.push_back(std::move(keyed));
  }
  return out;
}

Value sort(Call& call) {
  std::vector<std::vector<Value>> paths;
  if (const Value* const attribute = call.given[2]; attribute && attribute->is(Kind::String)) {
    std::string_view rest = view_of(*attribute);
    for (;;) {
      const std::string_view one = rest.substr(0, rest.find(','));
      const Value path = make_string(call.budget, Text(std::string(one)));
      paths.push_back(path_of(call, &path));
      if (one.size() == rest.size()) break;
      rest.remove_prefix(one.size() + 1);
    }
  } else {
    paths.push_back(path_of(call, attribute));
  }
  std::vector<Keyed> items = keyed_items(call, paths, flag(call, 1, false));
  sort_by_keys(call, items, flag(call, 0, false));
  return listed(call, items_of(std::move(items)));
}

Value dictsort(Call& call) {
  if (!call.self.is(Kind::Dict)) {
    refuse_undefined(call.self);
    fail("dictsort: found a {}, expected a dict", type_name(call.self));
  }
  const std::string_view by = call.given[1] ? string_of(*call.given[1], "dictsort") : "key";
  if (by != "key" && by != "value") fail("dictsort: found by='{}', expected key or value", by);
  std::vector<Keyed> items;
  for (const auto& [key, value] : call.self.as<DictRep>().entries) {
    items.push_back({{without_case(call, by == "key" ? key : value, flag(call, 0, false))},
                     listed(call, {key, value}, Sequence::Tuple)});
  }
  sort_by_keys(call, items, flag(call, 2, false));
  return listed(call, items_of(std::move(items)));
}

Value unique(Call& call) {
  std::vector<Keyed> items = keyed_items(call, {path_of(call, call.given[1])}, flag(call, 0, false));
  auto* const rep = new DictRep;
  const Value holder(Kind::Dict, rep);
  std::vector<Value> out;
  for (Keyed& keyed : items) {
    if (!hashes(call.budget, keyed.keys[0]))
      fail("unique: found a {}, expected a value that hashes", type_name(keyed.keys[0]));
    if (rep->find(call.budget, keyed.keys[0])) continue;
    rep->set(call.budget, keyed.keys[0], Value::none());
    out.push_back(std::move(keyed.item));
  }
  return listed(call, std::move(out), Sequence::Iterator);
}

template <int sign>
Value extreme(Call& call) {
  std::vector<Keyed> items = keyed_items(call, {path_of(call, call.given[1])}, flag(call, 0, false));
  if (items.empty()) return Value();
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    if (compare(call.budget, items[i].keys[0], items[best].keys[0]) * sign > 0) best = i;
  }
  return items[best].item;
}

Value groupby(Call& call) {
  const bool case_sensitive = flag(call, 2, false);
  const std::vector<Value> path = path_of(call, call.given[0]);
  const auto real_key = [&](const Value& item) {
    const Value key = at_path(call, item, path);
    return key.is(Kind::Undefined) && call.given[1] ? *call.given[1] : key;
  };
  std::vector<Keyed> items;
  for (const Value& item : call.evaluator.items_of(call.self))
    items.push_back({{without_case(call, real_key(item), case_sensitive)}, item});
  sort_by_keys(call, items, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < items.size();) {
    std::vector<Value> members;
    const size_t first = i;
    for (; i < items.size() && equal(call.budget, items[i].keys[0], items[first].keys[0]); ++i)
      members.push_back(items[i].item);
    groups.push_back(listed(call, {real_key(items[first].item), listed(call, std::move(members))}, Sequence::Tuple));
  }
  return listed(call, std::move(groups));
}

Value join(Call& call) {
  const std::vector<Value> path = path_of(call, call.given[1]);
  const Value separator = call.given[0] ? to_string(call.budget, *call.given[0]) : make_string(call.budget, Text());
  const std::vector<Value> items = call.evaluator.items_of(call.self);
  Output out(call.budget);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.text().append(text_of(separator));
    append_str(call.budget, at_path(call, items[i], path), out.text());
    out.count();
  }
  return make_string(call.budget, std::move(out.text()));
}

Value length(Call& call) {
  const Value& v = call.self;
  switch (v.kind()) {
    case Kind::Undefined:
      return Value(int64_t{0});
    case Kind::String:
      call.budget.scan(view_of(v).size());
      return Value(static_cast<int64_t>(count_code_points(view_of(v))));
    case Kind::List:
      if (is_sequence(v, Sequence::Iterator)) break;
      return Value(static_cast<int64_t>(v.as<ListRep>().items.size()));
    case Kind::Dict:
      return Value(static_cast<int64_t>(v.as<DictRep>().entries.size()));
    default:
      break;
  }
  fail("length: found a {}, expected a list, a dict or a string", type_name(v));
}

Value first(Call& call) {
  if (call.self.is(Kind::List)) {
    auto& list = call.self.as<ListRep>();
    if (list.next >= list.items.size()) return Value();
    return list.items[list.sequence == Sequence::Iterator ? list.next++ : 0];
  }
  if (call.self.is(Kind::String)) return call.evaluator.item(call.self, Value(int64_t{0}));
  std::vector<Value> items = call.evaluator.items_of(call.self);
  return items.empty() ? Value() : items.front();
}

Value last(Call& call) {
  if (is_sequence(call.self, Sequence::Iterator)) fail("last: found an iterator, expected a list");
  refuse_undefined(call.self);
  if (call.self.is(Kind::String)) return call.evaluator.item(call.self, Value(int64_t{-1}));
  std::vector<Value> items = call.evaluator.items_of(call.self);
  return items.empty() ? Value() : items.back();
}

Value list(Call& call) { return listed(call, call.evaluator.items_of(call.self)); }

Value items(Call& call) {
  if (call.self.is(Kind::Undefined)) return listed(call, {}, Sequence::Iterator);
  if (!call.self.is(Kind::Dict)) fail("items: found a {}, expected a dict", type_name(call.self));
  std::vector<Value> out;
  for (const auto& [key, value] : call.self.as<DictRep>().entries)
    out.push_back(listed(call, {key, value}, Sequence::Tuple));
  return listed(call, std::move(out), Sequence::Iterator);
}

Value reverse(Call& call) {
  if (call.self.is(Kind::String))
    return call.evaluator.slice(call.self, Value::none(), Value::none(), Value(int64_t{-1}));
  std::vector<Value> out = call.evaluator.items_of(call.self);
  std::ranges::reverse(out);
  return listed(call, std::move(out), Sequence::Iterator);
}

Value sum(Call& call) {
  const std::vector<Value> path = path_of(call, call.given[0]);
  Value total = call.given[1] ? *call.given[1] : Value(int64_t{0});
  for (const Value& item : call.evaluator.items_of(call.self))
    total = call.evaluator.binary(Op::Add, total, at_path(call, item, path));
  return total;
}

Value batch(Call& call) {
  const int64_t size = integer_of(*call.given[0], "batch");
  std::vector<Value> batches, current;
  for (Value& item : call.evaluator.items_of(call.self)) {
    if (static_cast<int64_t>(current.size()) == size) batches.push_back(listed(call, std::exchange(current, {})));
    current.push_back(std::move(item));
  }
  if (!current.empty()) {
    const bool fills = call.given[1] && !call.given[1]->is(Kind::None);
    if (fills) call.budget.ask(static_cast<uint64_t>(std::max<int64_t>(size, 0)) * sizeof(Value));
    while (fills && static_cast<int64_t>(current.size()) < size) current.push_back(*call.given[1]);
    batches.push_back(listed(call, std::move(current)));
  }
  return listed(call, std::move(batches), Sequence::Iterator);
}

Value slice(Call& call) {
  const int64_t slices = integer_of(*call.given[0], "slice");
  if (slices <= 0 || slices > 100'000) fail("slice: found {} slices, expected 1 to 100000", slices);
  const std::vector<Value> all = call.evaluator.items_of(call.self);
  const size_t count = static_cast<size_t>(slices), each = all.size() / count, extra = all.size() % count;
  std::vector<Value> out;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t size = each + (i < extra ? 1 : 0);
    std::vector<Value> part(all.begin() + static_cast<ptrdiff_t>(at), all.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
    if (call.given[1] && !call.given[1]->is(Kind::None) && i >= extra) part.push_back(*call.given[1]);
    out.push_back(listed(call, std::move(part)));
  }
  return listed(call, std::move(out), Sequence::Iterator);
}

// --- Filters and tests given by name

// These filters take none and 0 for an empty list.
std::vector<Value> items_if_true(Call& call) {
  return truth(call.self) ? call.evaluator.items_of(call.self) : std::vector<Value>();
}

// Runs a filter or test that the arguments name, from `from` on, on a value.
Value applied(Call& call, const Builtin* (*find)(std::string_view), size_t from, const Value& v) {
  const std::string_view name = string_of(call.arguments.positional[from], "map");
  const Builtin* const builtin = find(name);
  if (!builtin) fail("found the filter or test '{}', which is not known", name.substr(0, 60));
  Arguments arguments;
  for (size_t i = from + 1; i < call.arguments.positional.size(); ++i)
    arguments.positional.push_back(call.arguments.positional[i]);
  arguments.named = call.arguments.named;
  return run_builtin(*builtin, call.evaluator, v, arguments);
}

// Returns an attribute that is no key: a method.
Value attr(Call& call) {
  const MethodSet* const methods = find_methods(string_of(*call.given[0], "attr"));
  if (call.self.is(Kind::Dict) && !(methods && methods->of(call.self))) return Value();
  return call.evaluator.item(call.self, *call.given[0]);
}

Value map(Call& call) {
  std::vector<Value> out;
  const auto named = [&](std::string_view name) -> const Value* {
    const auto found = std::ranges::find(call.arguments.named, name, &std::pair<std::string_view, Value>::first);
    return found == call.arguments.named.end() ? nullptr : &found->second;
  };
  const Value* const attribute = call.arguments.positional.empty() ? named("attribute") : nullptr;
  if (!attribute && call.arguments.positional.empty()) fail("map: found no filter, expected its name or attribute=");
  const std::vector<Value> path = path_of(call, attribute);
  const Value* const otherwise = attribute ? named("default") : nullptr;
  for (const Value& item : items_if_true(call)) {
    if (!attribute) {
      out.push_back(applied(call, find_filter, 0, item));
      continue;
    }
    Value v = at_path(call, item, path);
    out.push_back(v.is(Kind::Undefined) && otherwise ? *otherwise : std::move(v));
  }
  return listed(call, std::move(out), Sequence::Iterator);
}

// Returns items for which a test of them, or of an attribute, says `wanted`; without a test, whether they are true.
template <bool wanted, bool of_attribute>
Value select(Call& call) {
  const auto& given = call.arguments.positional;
  if (of_attribute && given.empty()) fail("selectattr: found no attribute");
  const std::vector<Value> path = of_attribute ? path_of(call, given.data()) : std::vector<Value>();
  const size_t test = of_attribute ? 1 : 0;
  std::vector<Value> out;
  for (const Value& item : items_if_true(call)) {
    const Value v = at_path(call, item, path);
    if (truth(given.size() > test ? applied(call, find_test, test, v) : v) == wanted) out.push_back(item);
  }
  return listed(call, std::move(out), Sequence::Iterator);
}

}  // namespace

std::vector<Builtin> sequence_filters() {
  return {{"attr", attr, 1, {"name"}},
          {"batch", batch, 1, {"linecount", "fill_with"}},
          {"count", length},
          {"dictsort", dictsort, 0, {"case_sensitive", "by", "reverse"}},
          {"first", first},
          {"groupby", groupby, 1, {"attribute", "default", "case_sensitive"}},
          {"items", items},
          {"join", join, 0, {"d", "attribute"}},
          {"last", last},
          {"length", length},
          {"list", list},
          {"map", map, 0, {}, true},
          {"max", extreme<1>, 0, {"case_sensitive", "attribute"}},
          {"min", extreme<-1>, 0, {"case_sensitive", "attribute"}},
          {"reject", select<false, false>, 0, {}, true},
          {"rejectattr", select<false, true>, 0, {}, true},
          {"reverse", reverse},
          {"select", select<true, false>, 0, {}, true},
          {"selectattr", select<true, true>, 0, {}, true},
          {"slice", slice, 1, {"slices", "fill_with"}},
          {"sort", sort, 0, {"reverse", "case_sensitive", "attribute"}},
          {"sum", sum, 0, {"attribute", "start"}},
          {"unique", unique, 0, {"case_sensitive", "attribute"}}};
}

}  // namespace snug::jinja
