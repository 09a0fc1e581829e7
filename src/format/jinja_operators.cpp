// Computes arithmetic, slices and %-formats as Python does.
#include <algorithm>
#include <cmath>

#include "format/jinja_eval.h"
#include "format/jinja_format.h"

namespace snug::jinja {
namespace {

std::string_view symbol(Op op) {
  switch (op) {
    case Op::Add:
      return "+";
    case Op::Subtract:
      return "-";
    case Op::Multiply:
      return "*";
    case Op::Divide:
      return "/";
    case Op::FloorDivide:
      return "//";
    case Op::Modulo:
      return "%";
    default:
      return "**";
  }
}

[[noreturn]] void fail_at(Op op, const Value& a, const Value& b) {
  fail("found {} {} {}, which has no meaning", type_name(a), symbol(op), type_name(b));
}

int64_t whole_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0 && __builtin_mul_overflow(result, base, &result))
      fail("found a power that 64 bits do not hold");
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) fail("found a power that 64 bits do not hold");
  }
  return result;
}

Value whole_arithmetic(Op op, const Value& left, const Value& right) {
  const int64_t a = left.integer(), b = right.integer();
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::Add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::Subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::Multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::Power:
      if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      return Value(whole_power(a, b));
    default:
      if (b == 0) fail("found a division by 0");
      if (op == Op::Divide) return Value(static_cast<double>(a) / static_cast<double>(b));
      if (b == -1) {
        overflow = op == Op::FloorDivide && __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      // Python rounds towards minus infinity, C++ towards 0.
      result = op == Op::FloorDivide ? a / b : a % b;
      if (a % b != 0 && (a < 0) != (b < 0)) result += op == Op::FloorDivide ? -1 : b;
  }
  if (overflow) fail("found {} {} {}, which 64 bits do not hold", a, symbol(op), b);
  return Value(result);
}

Value real_arithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::Add:
      return Value(a + b);
    case Op::Subtract:
      return Value(a - b);
    case Op::Multiply:
      return Value(a * b);
    case Op::Power:
      return Value(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) fail("found a division by 0");
  if (op == Op::Divide) return Value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == Op::Modulo) return Value(rest);
  const double quotient = (a - rest) / b, whole = std::floor(quotient);
  return Value(quotient - whole > 0.5 ? whole + 1 : whole);
}

// Returns the product, or the most that 64 bits hold.
uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

// Repeats a text or list `times` times.
Value repeated(Budget& budget, const Value& v, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (v.is(Kind::String)) {
    const Text& text = text_of(v);
    budget.ask(product(text.size(), count));
    Text out;
    out.reserve(text.size() * count);
    for (uint64_t i = 0; i < count && !text.empty(); ++i) {
      budget.step();
      out.append(text);
    }
    return make_string(budget, std::move(out), is_safe(v));
  }
  const auto& list = v.as<ListRep>();
  budget.ask(product(list.items.size() * sizeof(Value), count));
  std::vector<Value> items;
  for (uint64_t i = 0; i < count && !list.items.empty(); ++i)
    items.insert(items.end(), list.items.begin(), list.items.end());
  return make_list(budget, std::move(items), list.sequence);
}

bool repeats(const Value& v) {
  return v.is(Kind::String) || is_sequence(v, Sequence::List) || is_sequence(v, Sequence::Tuple);
}

Value added(Budget& budget, const Value& a, const Value& b) {
  if (a.is(Kind::String) && b.is(Kind::String)) {
    const bool safe = is_safe(a) || is_safe(b);
    budget.ask(text_of(a).size() + text_of(b).size());
    if (safe) budget.rewrite(text_of(a).size() + text_of(b).size());
    Text out;
    for (const Value* const v : {&a, &b}) out.append(safe && !is_safe(*v) ? html_escaped(text_of(*v)) : text_of(*v));
    return make_string(budget, std::move(out), safe);
  }
  const bool lists = is_sequence(a, Sequence::List) && is_sequence(b, Sequence::List);
  if (!lists && !(is_sequence(a, Sequence::Tuple) && is_sequence(b, Sequence::Tuple))) fail_at(Op::Add, a, b);
  const auto &x = a.as<ListRep>(), &y = b.as<ListRep>();
  budget.ask((x.items.size() + y.items.size()) * sizeof(Value));
  std::vector<Value> items = x.items;
  items.insert(items.end(), y.items.begin(), y.items.end());
  return make_list(budget, std::move(items), x.sequence);
}

// Says where slices of `size` items begin and end.
struct Bounds {
  int64_t begin = 0, end = 0, step = 1;
};

std::optional<int64_t> index_of(const Value& v) {
  if (v.is(Kind::None)) return {};
  refuse_undefined(v);
  if (!v.is_integral()) fail("found a {} in a slice, expected an int", type_name(v));
  return v.integer();
}

Bounds bounds_of(int64_t size, std::optional<int64_t> begin, std::optional<int64_t> end, int64_t step) {
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  const auto within = [&](std::optional<int64_t> at, int64_t otherwise) {
    if (!at) return otherwise;
    return std::clamp(*at < 0 ? *at + size : *at, low, high);
  };
  return {within(begin, step < 0 ? high : low), within(end, step < 0 ? low : high), step};
}

// Returns the byte of the code point `index`, counted from the end if it is negative; the text's ends beyond them.
size_t byte_of(Budget& budget, std::string_view text, int64_t index) {
  const bool from_end = index < 0;
  size_t at = from_end ? text.size() : 0;
  for (; index < 0 && at > 0; ++index) at = previous_code_point(text, at);
  for (; index > 0 && at < text.size(); --index) at = next_code_point(text, at);
  budget.scan(from_end ? text.size() - at : at);
  return at;
}

template <class Take>
void each_of(const Bounds& bounds, Take take) {
  for (int64_t i = bounds.begin; bounds.step < 0 ? i > bounds.end : i < bounds.end;) {
    take(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, bounds.step, &i)) return;
  }
}

}  // namespace

Value Evaluator::binary(Op op, const Value& a, const Value& b) {
  refuse_undefined(a);
  if (op == Op::Modulo && a.is(Kind::String)) return printf_formatted(*this, a, b);
  refuse_undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return whole_arithmetic(op, a, b);
    return real_arithmetic(op, a.real(), b.real());
  }
  if (op == Op::Add) return added(budget_, a, b);
  if (op == Op::Multiply && repeats(a) && b.is_integral()) return repeated(budget_, a, b.integer());
  if (op == Op::Multiply && repeats(b) && a.is_integral()) return repeated(budget_, b, a.integer());
  fail_at(op, a, b);
}

Value Evaluator::slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  refuse_undefined(object);
  const auto from = index_of(begin), to = index_of(end);
  const int64_t by = index_of(step).value_or(1);
  if (by == 0) fail("found a slice with a step of 0");
  if (object.is(Kind::String)) {
    const Text& text = text_of(object);
    if (by == 1) {
      const size_t first = from ? byte_of(budget_, text.bytes(), *from) : 0;
      const size_t last = to ? byte_of(budget_, text.bytes(), *to) : text.size();
      return make_string(budget_, text.slice(first, std::max(first, last)), is_safe(object));
    }
    budget_.ask(text.size() * sizeof(size_t));
    budget_.rewrite(text.size());
    std::vector<size_t> starts;
    for (size_t at = 0; at < text.size(); at = next_code_point(text.bytes(), at)) starts.push_back(at);
    Text out;
    each_of(bounds_of(static_cast<int64_t>(starts.size()), from, to, by),
            [&](size_t i) { out.append(text, starts[i], i + 1 < starts.size() ? starts[i + 1] : text.size()); });
    return make_string(budget_, std::move(out), is_safe(object));
  }
  if (!object.is(Kind::List) || object.as<ListRep>().sequence >= Sequence::Iterator)
    fail("found a slice of a {}, expected a list or a string", type_name(object));
  const auto& list = object.as<ListRep>();
  std::vector<Value> items;
  const Bounds bounds = bounds_of(static_cast<int64_t>(list.items.size()), from, to, by);
  budget_.ask(list.items.size() * sizeof(Value));
  each_of(bounds, [&](size_t i) { items.push_back(list.items[i]); });
  const int64_t last = items.empty() || list.sequence != Sequence::Range ? 0 : items.back().integer();
  Value out = make_list(budget_, std::move(items), list.sequence);
  if (last != 0 && list.items.size() > 1)
    out.as<ListRep>().end = last + by * (list.items[1].integer() - list.items[0].integer());
  return out;
}

}  // namespace snug::jinja
