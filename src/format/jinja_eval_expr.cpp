// Evaluates expressions: the half of the evaluator that makes values.
#include <algorithm>
#include <array>

#include "format/jinja_eval.h"

namespace snug::jinja {
namespace {

// Returns whether a method is one of those that jinja2's sandbox of immutable values refuses.
bool would_change(const Value& object, std::string_view method) {
  static constexpr std::array<std::string_view, 8> kOfList = {"append", "clear",  "extend",  "insert",
                                                              "pop",    "remove", "reverse", "sort"};
  static constexpr std::array<std::string_view, 5> kOfDict = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto has = [&](const auto& methods) { return std::ranges::find(methods, method) != methods.end(); };
  return is_sequence(object, Sequence::List) ? has(kOfList) : object.is(Kind::Dict) && has(kOfDict);
}

}  // namespace

Value Evaluator::eval(const Expr& expr) {
  budget_.step();
  switch (expr.op) {
    case Op::Constant:
      return expr.constant;
    case Op::Name: {
      const Value& v = slot(expr.slot);
      return v.is(Kind::Undefined) && !v.origin() ? Value::undefined(&expr) : v;
    }
    case Op::Attribute:
      return eval_attribute(expr);
    default:
      break;
  }
  const Depth depth(*this);
  return eval_rest(expr);
}

Value Evaluator::eval_rest(const Expr& expr) {
  line_ = expr.line;
  const auto part = [&](size_t i) { return eval(*expr.parts[i]); };
  switch (expr.op) {
    case Op::Tuple:
    case Op::List:
    case Op::Dict:
      return eval_sequence(expr);
    case Op::Item: {
      const Value object = part(0);
      return item(object, part(1), &expr);
    }
    case Op::Slice:
      return eval_slice(expr);
    case Op::Call:
      return eval_call(expr);
    case Op::Filter:
      return eval_filter(expr, nullptr);
    case Op::Test:
      return eval_test(expr);
    case Op::Not:
      return Value(!truth(part(0)));
    case Op::And: {
      Value left = part(0);
      return truth(left) ? part(1) : left;
    }
    case Op::Or: {
      Value left = part(0);
      return truth(left) ? left : part(1);
    }
    case Op::Negative: {
      const Value v = part(0);
      return v.is(Kind::Float) ? Value(-v.real()) : binary(Op::Subtract, Value(int64_t{0}), v);
    }
    case Op::Positive:
      return binary(Op::Add, Value(int64_t{0}), part(0));
    case Op::Add:
    case Op::Concat:
      return eval_joined(expr);
    case Op::Compare:
      return eval_compare(expr);
    case Op::Conditional:
      if (truth(part(0))) return part(1);
      return expr.parts[2] ? part(2) : Value::undefined(&expr);
    default: {
      const Value left = part(0);
      return binary(expr.op, left, part(1));
    }
  }
}

Value Evaluator::eval_attribute(const Expr& expr) {
  if (expr.parts[0]->op == Op::Name) {
    const Value& object = slot(expr.parts[0]->slot);
    if (object.is(Kind::Dict) && !expr.methods) {
      const Value* const found = object.as<DictRep>().find(budget_, expr.name);
      return found ? *found : Value::undefined(&expr);
    }
  }
  const Depth depth(*this);
  const Value object = eval(*expr.parts[0]);
  line_ = expr.line;
  return attribute_of(object, expr);
}

Value Evaluator::attribute_of(const Value& object, const Expr& expr) {
  refuse_undefined(object);
  if (const Builtin* const method = expr.methods ? expr.methods->of(object) : nullptr) {
    auto* const rep = new FunctionRep;
    Value v(Kind::Function, rep);
    charge(budget_, *rep, sizeof(FunctionRep));
    nest(*rep, object);
    rep->builtin = method;
    rep->self = object;
    return v;
  }
  switch (object.kind()) {
    case Kind::Dict:
      if (const Value* const found = object.as<DictRep>().find(budget_, expr.name)) return *found;
      break;
    case Kind::Namespace:
      if (const Value* const found = object.as<NamespaceRep>().find(budget_, expr.name)) return *found;
      break;
    case Kind::Object:
      return object_attribute(object.as<ObjectRep>(), expr);
    default:
      break;
  }
  return Value::undefined(&expr);
}

Value Evaluator::item(const Value& object, const Value& key, const Expr* origin) {
  budget_.step();
  refuse_undefined(object);
  switch (object.kind()) {
    case Kind::Dict:
      if (const Value* const found = hashes(budget_, key) ? object.as<DictRep>().find(budget_, key) : nullptr)
        return *found;
      break;
    case Kind::List: {
      const auto& list = object.as<ListRep>();
      if (!key.is_integral() || list.sequence >= Sequence::Iterator) break;
      const auto size = static_cast<int64_t>(list.items.size());
      const int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
      if (index >= 0 && index < size) return list.items[static_cast<size_t>(index)];
      return Value::undefined(origin);
    }
    case Kind::String:
      if (key.is_integral()) {
        if (key.integer() == INT64_MIN) break;
        const bool last = key.integer() == -1;
        const Value one = slice(object, key, last ? Value::none() : Value(key.integer() + 1), Value::none());
        return text_of(one).empty() ? Value::undefined(origin) : one;
      }
      break;
    case Kind::Namespace:
      if (!key.is(Kind::String)) break;
      if (const Value* const found = object.as<NamespaceRep>().find(budget_, view_of(key))) return *found;
      break;
    default:
      break;
  }
  if (!key.is(Kind::String)) return Value::undefined(origin);
  // This is a method by its name in brackets, or an attribute of a loop.
  budget_.ask(view_of(key).size());
  Expr attribute{.op = Op::Attribute, .name = std::string(view_of(key))};
  attribute.methods = find_methods(attribute.name);
  if (object.is(Kind::Dict) && !(attribute.methods && attribute.methods->of(object))) return Value::undefined(origin);
  Value v = attribute_of(object, attribute);
  return v.is(Kind::Undefined) ? Value::undefined(origin) : v;
}

Value Evaluator::eval_sequence(const Expr& expr) {
  if (expr.op == Op::Dict) {
    std::vector<std::pair<Value, Value>> entries;
    for (size_t i = 0; i < expr.parts.size(); i += 2) {
      Value key = eval(*expr.parts[i]);
      entries.emplace_back(std::move(key), eval(*expr.parts[i + 1]));
    }
    return make_dict(budget_, std::move(entries));
  }
  std::vector<Value> items;
  items.reserve(expr.parts.size());
  for (const ExprPtr& part : expr.parts) items.push_back(eval(*part));
  return make_list(budget_, std::move(items), expr.op == Op::Tuple ? Sequence::Tuple : Sequence::List);
}

bool Evaluator::holds(Comparison which, const Value& a, const Value& b) {
  switch (which) {
    case Comparison::Equal:
      return equal(budget_, a, b);
    case Comparison::NotEqual:
      return !equal(budget_, a, b);
    case Comparison::In:
      return contains(b, a);
    case Comparison::NotIn:
      return !contains(b, a);
    default:
      break;
  }
  if ((a.is(Kind::Float) && a.real() != a.real()) || (b.is(Kind::Float) && b.real() != b.real())) {
    compare(budget_, a, b);
    return false;  // nan
  }
  const int order = compare(budget_, a, b);
  switch (which) {
    case Comparison::Less:
      return order < 0;
    case Comparison::LessEqual:
      return order <= 0;
    case Comparison::Greater:
      return order > 0;
    default:
      return order >= 0;
  }
}

Value Evaluator::eval_compare(const Expr& expr) {
  Value left = eval(*expr.parts[0]);
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    Value right = eval(*expr.parts[i + 1]);
    if (!holds(expr.comparisons[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

bool Evaluator::contains(const Value& container, const Value& v) {
  switch (container.kind()) {
    case Kind::Undefined:
      return false;
    case Kind::String:
      if (!v.is(Kind::String)) {
        refuse_undefined(v);
        fail("found a {} looked for in a str, expected a str", type_name(v));
      }
      budget_.scan(view_of(container).size() + view_of(v).size());
      return find_text(view_of(container), view_of(v)) != std::string_view::npos;
    case Kind::Dict:
      if (!hashes(budget_, v)) fail("found a {} looked for in a dict, expected a value that hashes", type_name(v));
      return container.as<DictRep>().find(budget_, v) != nullptr;
    case Kind::List: {
      const std::vector<Value> read =
          is_sequence(container, Sequence::Iterator) ? items_of(container) : std::vector<Value>();
      const auto& items = is_sequence(container, Sequence::Iterator) ? read : container.as<ListRep>().items;
      return std::ranges::any_of(items, [&](const Value& item) { return equal(budget_, item, v); });
    }
    default:
      fail("found a {} searched, expected a list, a dict or a string", type_name(container));
  }
}

// Collects the operands of a chain of + or ~ in their order. Returns whether the texts of all of them can be joined.
bool Evaluator::operands(const Expr& expr, std::vector<Value>& out) {
  const Expr* first = &expr;
  if (expr.op == Op::Concat) {
    for (const ExprPtr& part : expr.parts) out.push_back(eval(*part));
    return true;
  }
  std::vector<const Expr*> right;
  for (; first->op == Op::Add; first = first->parts[0].get()) right.push_back(first->parts[1].get());
  out.reserve(right.size() + 1);
  out.push_back(eval(*first));
  for (size_t i = right.size(); i-- > 0;) out.push_back(eval(*right[i]));
  return std::ranges::all_of(out, [](const Value& v) { return v.is(Kind::String) && !is_safe(v); });
}

// Returns a sum that is no text, added from the left.
Value Evaluator::joined(const std::vector<Value>& values) {
  Value sum = values[0];
  for (size_t i = 1; i < values.size(); ++i) sum = binary(Op::Add, sum, values[i]);
  return sum;
}

Value Evaluator::eval_joined(const Expr& expr) {
  std::vector<Value> parts;
  if (!operands(expr, parts)) return joined(parts);
  size_t bytes = 0;
  for (const Value& part : parts) bytes += part.is(Kind::String) ? text_of(part).size() : 8;
  budget_.ask(bytes);
  Text out;
  out.reserve(bytes);
  for (const Value& part : parts) append_str(budget_, part, out);
  return make_string(budget_, std::move(out));
}

void Evaluator::arguments_of(const Expr& expr, Arguments& arguments) {
  const size_t positional = expr.parts.size() - 1 - expr.keys.size();
  arguments.positional.reserve(positional);
  for (size_t i = 0; i < positional; ++i) arguments.positional.push_back(eval(*expr.parts[i + 1]));
  for (size_t i = 0; i < expr.keys.size(); ++i) {
    budget_.step(arguments.named.size() / 8);
    for (const auto& [name, value] : arguments.named) {
      if (name == expr.keys[i]) fail("found argument '{}' twice", name);
    }
    arguments.named.emplace_back(expr.keys[i], eval(*expr.parts[i + 1 + positional]));
  }
}

Value Evaluator::eval_call(const Expr& expr) {
  const Expr& callee = *expr.parts[0];
  Arguments arguments;
  if (callee.op == Op::Attribute) {
    const Value object = eval(*callee.parts[0]);
    line_ = callee.line;
    refuse_undefined(object);
    if (const Builtin* const method = callee.methods ? callee.methods->of(object) : nullptr) {
      arguments_of(expr, arguments);
      return run_builtin(*method, *this, object, arguments);
    }
    if (object.is(Kind::Object)) {
      arguments_of(expr, arguments);
      return call_object(object.as<ObjectRep>(), callee.name, arguments);
    }
    const Value function = attribute_of(object, callee);
    if (function.is(Kind::Undefined) && would_change(object, callee.name))
      fail(
          "found {}() of a {} called, which would change it: the values of a template are immutable, and transformers "
          "refuses such a call too",
          callee.name, type_name(object));
    arguments_of(expr, arguments);
    return call(function, arguments);
  }
  const Value function = eval(callee);
  arguments_of(expr, arguments);
  line_ = expr.line;
  return call(function, arguments);
}

Value Evaluator::eval_filter(const Expr& expr, const Value* subject) {
  // The innermost filter of a block has no subject of its own.
  const Value self = !expr.parts[0]                               ? *subject
                     : subject && expr.parts[0]->op == Op::Filter ? eval_filter(*expr.parts[0], subject)
                                                                  : eval(*expr.parts[0]);
  if (!expr.builtin) fail("found the filter '{}', which is not known", expr.name);
  Arguments arguments;
  arguments_of(expr, arguments);
  line_ = expr.line;
  return run_builtin(*expr.builtin, *this, self, arguments);
}

Value Evaluator::eval_test(const Expr& expr) {
  const Value self = eval(*expr.parts[0]);
  if (!expr.builtin) fail("found the test '{}', which is not known", expr.name);
  Arguments arguments;
  arguments_of(expr, arguments);
  return run_builtin(*expr.builtin, *this, self, arguments);
}

Value Evaluator::eval_slice(const Expr& expr) {
  const Value object = eval(*expr.parts[0]);
  const auto part = [&](size_t i) { return expr.parts[i] ? eval(*expr.parts[i]) : Value::none(); };
  const Value begin = part(1), end = part(2);
  return slice(object, begin, end, part(3));
}

}  // namespace snug::jinja
