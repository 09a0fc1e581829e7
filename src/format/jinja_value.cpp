#include "format/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "format/jinja_ast.h"

namespace snug::jinja {
namespace {

constexpr uint16_t kMaxHeight = 200;

// A value in a list counts for this many bytes, with its share of the allocation.
constexpr uint64_t kItemBytes = sizeof(Value);

// Compares two numbers.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  return a.real() < b.real() ? -1 : a.real() > b.real();
}

bool equal_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  return a.real() == b.real();
}

}  // namespace

const Value* DictRep::find(std::string_view key) const {
  if (!index_.empty()) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (name.is(Kind::String) && view_of(name) == key) return &value;
  }
  return nullptr;
}

const Value* DictRep::find(Budget& budget, const Value& key) const {
  if (key.is(Kind::String)) return find(budget, view_of(key));
  budget.step(entries.size() / 4);
  for (const auto& [name, value] : entries) {
    if (!name.is(Kind::String) && equal(budget, name, key)) return &value;
  }
  return nullptr;
}

void DictRep::set(Value key, Value value) {
  const Value* const held = find(view_of(key));
  put(held, std::move(key), std::move(value));
}

void DictRep::set(Budget& budget, Value key, Value value) {
  const Value* const held = find(budget, key);
  put(held, std::move(key), std::move(value));
}

void DictRep::put(const Value* held, Value key, Value value) {
  nest(*this, key);
  nest(*this, value);
  if (held) {
    const_cast<Value&>(*held) = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  const size_t last = entries.size() - 1;
  for (size_t i = entries.size() == kSmall + 1 ? 0 : last; entries.size() > kSmall && i <= last; ++i) {
    if (entries[i].first.is(Kind::String)) index_.emplace(view_of(entries[i].first), i);
  }
}

Value* NamespaceRep::find(Budget& budget, std::string_view name) {
  budget.step(attributes.size() * (8 + name.size() / 16) / 64);
  for (auto& [held, value] : attributes) {
    if (held == name) return &value;
  }
  return nullptr;
}

void charge(Budget& budget, Rep& rep, uint64_t bytes) {
  bytes += sizeof(StringRep);
  budget.step();
  budget.ask(bytes);
  budget.bytes -= bytes;
  rep.budget = &budget;
  rep.charged = bytes;
}

void nest(Rep& rep, const Value& part) {
  if (part.kind() < Kind::List || part.is(Kind::Namespace) || part.rep()->height < rep.height) return;
  if (part.rep()->height >= kMaxHeight) fail("found values more than {} deep within each other", kMaxHeight);
  rep.height = static_cast<uint16_t>(part.rep()->height + 1);
}

Value make_string(Text text) {
  auto* const rep = new StringRep;
  rep->text = std::move(text);
  return {Kind::String, rep};
}

Value make_string(Budget& budget, Text text, bool safe) {
  auto* const rep = new StringRep;
  Value v(Kind::String, rep);
  charge(budget, *rep, text.footprint());
  rep->text = std::move(text);
  rep->safe = safe;
  return v;
}

Value make_list(std::vector<Value> items) {
  auto* const rep = new ListRep;
  Value v(Kind::List, rep);
  for (const Value& item : items) nest(*rep, item);
  rep->items = std::move(items);
  return v;
}

Value make_list(Budget& budget, std::vector<Value> items, Sequence sequence) {
  auto* const rep = new ListRep;
  Value v(Kind::List, rep);
  charge(budget, *rep, items.size() * kItemBytes);
  for (const Value& item : items) nest(*rep, item);
  rep->items = std::move(items);
  rep->sequence = sequence;
  return v;
}

Value make_dict(Budget& budget, std::vector<std::pair<Value, Value>> entries) {
  auto* const rep = new DictRep;
  Value v(Kind::Dict, rep);
  charge(budget, *rep, entries.size() * 4 * kItemBytes);
  for (auto& [key, value] : entries) {
    if (!hashes(budget, key)) fail("found a {} as a key, expected a value that hashes", type_name(key));
    rep->set(budget, std::move(key), std::move(value));
  }
  return v;
}

bool truth(const Value& v) {
  switch (v.kind()) {
    case Kind::Undefined:
    case Kind::None:
      return false;
    case Kind::Bool:
    case Kind::Int:
      return v.integer() != 0;
    case Kind::Float:
      return v.real() != 0;
    case Kind::String:
      return !text_of(v).empty();
    case Kind::List:
      return v.as<ListRep>().sequence == Sequence::Iterator || !v.as<ListRep>().items.empty();
    case Kind::Dict:
      return !v.as<DictRep>().entries.empty();
    default:
      return true;
  }
}

std::string_view type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::Undefined:
      return "undefined value";
    case Kind::None:
      return "none";
    case Kind::Bool:
      return "bool";
    case Kind::Int:
      return "int";
    case Kind::Float:
      return "float";
    case Kind::String:
      return "str";
    case Kind::Dict:
      return "dict";
    case Kind::List:
      switch (v.as<ListRep>().sequence) {
        case Sequence::List:
          return "list";
        case Sequence::Tuple:
          return "tuple";
        case Sequence::Range:
          return "range";
        case Sequence::Iterator:
          return "iterator";
        case Sequence::Keys:
        case Sequence::Values:
        case Sequence::Items:
          return "view of a dict";
      }
      return "list";
    case Kind::Namespace:
      return "namespace";
    case Kind::Function:
      return "function";
    case Kind::Object:
      return "object";
    case Kind::BigInt:
      return "int beyond 64 bits";
  }
  return "";
}

void refuse_undefined(const Value& v) {
  if (!v.is(Kind::Undefined)) return;
  fail("found {} undefined", v.origin() ? described(*v.origin()) : "a value that is");
}

bool equal(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::Undefined:
    case Kind::None:
      return true;
    case Kind::String:
      if (view_of(a).size() == view_of(b).size()) budget.read(view_of(a).size());
      return view_of(a) == view_of(b);
    case Kind::List: {
      const auto &x = a.as<ListRep>(), &y = b.as<ListRep>();
      if (&x == &y) return true;
      if (x.sequence != y.sequence || x.sequence >= Sequence::Iterator || x.items.size() != y.items.size())
        return false;
      return std::equal(x.items.begin(), x.items.end(), y.items.begin(),
                        [&](const Value& p, const Value& q) { return equal(budget, p, q); });
    }
    case Kind::Dict: {
      const auto &x = a.as<DictRep>(), &y = b.as<DictRep>();
      if (x.entries.size() != y.entries.size()) return false;
      return std::all_of(x.entries.begin(), x.entries.end(), [&](const auto& entry) {
        const Value* const other = y.find(budget, entry.first);
        return other && equal(budget, entry.second, *other);
      });
    }
    case Kind::BigInt:
      return a.as<BigIntRep>().digits == b.as<BigIntRep>().digits;
    default:
      return a.rep() == b.rep();
  }
}

int compare(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is(Kind::String) && b.is(Kind::String)) {
    budget.read(std::min(view_of(a).size(), view_of(b).size()));
    return view_of(a).compare(view_of(b));
  }
  const bool lists = is_sequence(a, Sequence::List) && is_sequence(b, Sequence::List);
  if (lists || (is_sequence(a, Sequence::Tuple) && is_sequence(b, Sequence::Tuple))) {
    const auto &x = a.as<ListRep>().items, &y = b.as<ListRep>().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equal(budget, x[i], y[i])) return compare(budget, x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  refuse_undefined(a);
  refuse_undefined(b);
  fail("found {} and {} compared, expected values with an order", type_name(a), type_name(b));
}

bool hashes(Budget& budget, const Value& v) {
  if (v.is(Kind::Dict) || is_sequence(v, Sequence::List)) return false;
  if (!is_sequence(v, Sequence::Tuple)) return true;
  const auto& items = v.as<ListRep>().items;
  budget.step(items.size());
  return std::ranges::all_of(items, [&](const Value& item) { return hashes(budget, item); });
}

Value to_string(Budget& budget, const Value& v) {
  if (v.is(Kind::String) && !is_safe(v)) return v;
  Text out;
  append_str(budget, v, out);
  return make_string(budget, std::move(out));
}

}  // namespace snug::jinja
