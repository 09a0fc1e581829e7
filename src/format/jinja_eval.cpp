#include "format/jinja_eval.h"

#include <algorithm>

namespace snug::jinja {
Evaluator::Evaluator(const Program& program, std::vector<Value> context, const std::tm& now, Budget& budget)
    : program_(program), context_(std::move(context)), now_(now), budget_(budget) {}

Evaluator::~Evaluator() {
  for (const Value& v : namespaces_) v.as<NamespaceRep>().attributes.clear();
}

Text Evaluator::run() {
  Activation root;
  root.slots.resize(program_.root.slots);
  activation_ = &root;
  enter(program_.root.frame);
  Output out(budget_);
  run(program_.root.body, out);
  kept_.clear();
  return std::move(out.text());
}

void Evaluator::enter(const Frame& frame) {
  budget_.step(frame.starts.size());
  for (const SlotStart& start : frame.starts) {
    Value& v = activation_->slots[start.index];
    switch (start.from) {
      case SlotStart::From::Nothing:
        v = Value();
        break;
      case SlotStart::From::Outer:
        v = slot(start.outer);
        break;
      case SlotStart::From::Context:
        v = context_[start.context];
        break;
    }
  }
}

Evaluator::Flow Evaluator::run(const Block& block, Output& out) {
  const Depth depth(*this);
  for (const Statement& s : block) {
    if (const Flow flow = run(s, out); flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Evaluator::Flow Evaluator::run(const Statement& s, Output& out) {
  budget_.step();
  line_ = s.line;
  switch (s.action) {
    case Action::Text:
      out.text().append(s.text);
      out.count();
      return Flow::Next;
    case Action::Print:
      print(*s.value, out);
      return Flow::Next;
    case Action::If:
      return run_if(s, out);
    case Action::For:
      return run_for(s, out);
    case Action::Set:
      assign(*s.target, eval(*s.value));
      return Flow::Next;
    case Action::Macro:
      assign(*s.target, function_of(*s.function));
      return Flow::Next;
    case Action::CallBlock: {
      Arguments arguments;
      arguments_of(*s.value, arguments);
      arguments.named.emplace_back("caller", function_of(*s.function));
      append_value(call(eval(*s.value->parts[0]), arguments), out);
      return Flow::Next;
    }
    case Action::With: {
      std::vector<Value> values;
      for (const auto& [target, value] : s.bindings) values.push_back(eval(*value));
      enter(s.frame);
      for (size_t i = 0; i < values.size(); ++i) assign(*s.bindings[i].first, std::move(values[i]));
      return run(s.body, out);
    }
    case Action::Generation: {
      enter(s.frame);
      const size_t begin = out.text().size();
      const Flow flow = run(s.body, out);
      budget_.scan(out.text().size() - begin);
      out.text().mark_from(begin, kGenerated);
      out.count();
      return flow;
    }
    case Action::SetBlock:
    case Action::FilterBlock:
      return run_captured(s, out);
    case Action::Break:
      return Flow::Break;
    case Action::Continue:
      return Flow::Continue;
  }
  return Flow::Next;
}

Evaluator::Flow Evaluator::run_if(const Statement& s, Output& out) {
  for (const auto& [condition, then] : s.branches) {
    if (truth(eval(*condition))) return run(then, out);
  }
  return run(s.otherwise, out);
}

Evaluator::Flow Evaluator::run_captured(const Statement& s, Output& out) {
  enter(s.frame);
  Value text;
  {
    Output captured(budget_);
    if (const Flow flow = run(s.body, captured); flow != Flow::Next) return flow;
    text = make_string(budget_, std::move(captured.text()));
  }
  line_ = s.line;
  if (s.value) text = eval_filter(*s.value, &text);
  if (s.target) {
    assign(*s.target, std::move(text));
  } else {
    append_value(text, out);
  }
  return Flow::Next;
}

std::vector<Value> Evaluator::chosen(const Statement& s, std::vector<Value> items) {
  std::vector<Value> out;
  for (Value& item : items) {
    if (chooses(s, item)) out.push_back(std::move(item));
  }
  return out;
}

bool Evaluator::chooses(const Statement& s, const Value& item) {
  budget_.step();
  assign(*s.target, item);
  return truth(eval(*s.condition));
}

Evaluator::Flow Evaluator::run_for(const Statement& s, Output& out) {
  // A list is held while its items are taken; anything else gives a list of its own. If `loop` may tell how many items
  // there are, they are chosen beforehand; else one by one, so that the condition sees what bodies have set.
  Value iterated = eval(*s.value);
  if (s.condition) enter(s.condition_frame);
  if (s.condition && s.uses_loop) {
    iterated = make_list(budget_, chosen(s, items_of(iterated)));
  } else if (!iterated.is(Kind::List) || is_sequence(iterated, Sequence::Iterator)) {
    iterated = make_list(budget_, items_of(iterated));
  }
  const std::vector<Value>& items = iterated.as<ListRep>().items;
  Value loop;
  if (s.uses_loop) loop = make_object(ObjectRep::Type::Loop, {iterated});
  bool none = true;  // no body has run to its end
  for (size_t i = 0; i < items.size(); ++i) {
    if (s.condition && !s.uses_loop && !chooses(s, items[i])) continue;
    if (s.uses_loop) {
      loop.as<ObjectRep>().at = i;
      slot(s.loop) = loop;
    }
    assign(*s.target, items[i]);
    enter(s.frame);
    const Flow flow = run(s.body, out);
    if (flow == Flow::Break) break;
    if (flow == Flow::Next) none = false;
  }
  if (!none || s.otherwise.empty()) return Flow::Next;
  enter(s.otherwise_frame);
  return run(s.otherwise, out);
}

void Evaluator::append_value(const Value& v, Output& out) {
  append_str(budget_, v, out.text());
  out.count();
}

void Evaluator::print(const Expr& expr, Output& out) {
  if (expr.op == Op::Add || expr.op == Op::Concat) {
    // Texts that are joined only to be printed are printed part by part.
    std::vector<Value> parts;
    if (operands(expr, parts)) {
      for (const Value& part : parts) append_value(part, out);
    } else {
      append_value(joined(parts), out);
    }
    return;
  }
  append_value(eval(expr), out);
}

void Evaluator::assign(const Expr& target, Value v) {
  if (target.op == Op::Name) {
    slot(target.slot) = std::move(v);
    return;
  }
  if (target.op == Op::Tuple) return unpack(target, v);
  const Value& held = slot(target.slot);
  if (!held.is(Kind::Namespace))
    fail("found attribute '{}' of '{}' assigned to, which is a {}, expected a namespace", target.attribute, target.name,
         type_name(held));
  auto& space = held.as<NamespaceRep>();
  if (Value* const attribute = space.find(budget_, target.attribute)) {
    *attribute = std::move(v);
  } else {
    budget_.step(space.attributes.size());
    space.attributes.emplace_back(target.attribute, std::move(v));
  }
}

void Evaluator::unpack(const Expr& target, const Value& v) {
  std::vector<Value> items = items_of(v);
  if (items.size() != target.parts.size())
    fail("found {} values to unpack, expected {}", items.size(), target.parts.size());
  for (size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], std::move(items[i]));
}

std::vector<Value> Evaluator::items_of(const Value& v) {
  std::vector<Value> out;
  switch (v.kind()) {
    case Kind::Undefined:
      return out;
    case Kind::List: {
      auto& list = v.as<ListRep>();
      budget_.ask(list.items.size() * sizeof(Value));
      out.assign(list.items.begin() + static_cast<ptrdiff_t>(list.next), list.items.end());
      if (list.sequence == Sequence::Iterator) list.next = list.items.size();
      return out;
    }
    case Kind::Dict:
      budget_.ask(v.as<DictRep>().entries.size() * sizeof(Value));
      for (const auto& [key, value] : v.as<DictRep>().entries) out.push_back(key);
      return out;
    case Kind::String: {
      const Text& text = text_of(v);
      budget_.ask(text.size() * (sizeof(Value) + sizeof(StringRep)));
      for (size_t at = 0; at < text.size();) {
        const size_t next = next_code_point(text.bytes(), at);
        out.push_back(make_string(budget_, text.slice(at, next)));
        at = next;
      }
      return out;
    }
    default:
      fail("found a {} to iterate over, expected a list, a dict or a string", type_name(v));
  }
}

Value Evaluator::function_of(const Function& function) {
  auto* const rep = new FunctionRep;
  Value v(Kind::Function, rep);
  charge(budget_, *rep, sizeof(FunctionRep));
  rep->macro = &function;
  rep->home = activation_;
  return v;
}

Value Evaluator::make_object(ObjectRep::Type type, std::vector<Value> items) {
  auto* const rep = new ObjectRep;
  Value v(Kind::Object, rep);
  charge(budget_, *rep, items.size() * sizeof(Value));
  for (const Value& item : items) nest(*rep, item);
  rep->type = type;
  rep->items = std::move(items);
  return v;
}

Value Evaluator::make_namespace(Arguments& arguments) {
  auto* const rep = new NamespaceRep;
  Value v(Kind::Namespace, rep);
  charge(budget_, *rep, sizeof(NamespaceRep));
  namespaces_.push_back(v);
  for (const Value& from : arguments.positional) {
    if (!from.is(Kind::Dict)) fail("namespace: found a {}, expected a dict", type_name(from));
    budget_.ask(from.as<DictRep>().entries.size() * sizeof(rep->attributes[0]));
    for (const auto& [key, value] : from.as<DictRep>().entries) {
      if (key.is(Kind::String)) rep->attributes.emplace_back(view_of(key), value);
    }
  }
  for (auto& [name, value] : arguments.named) {
    if (Value* const held = rep->find(budget_, name)) {
      *held = std::move(value);
    } else {
      rep->attributes.emplace_back(name, std::move(value));
    }
  }
  return v;
}

Value Evaluator::call_macro(const Function& function, Activation* home, Arguments& arguments) {
  const Depth depth(*this);
  const uint64_t bytes = function.slots * sizeof(Value) + sizeof(Activation);
  budget_.ask(bytes);
  auto activation = std::make_unique<Activation>();
  activation->slots.resize(function.slots);
  activation->outer = home;
  Activation* const caller = std::exchange(activation_, activation.get());
  struct Restore {
    Evaluator& evaluator;
    Activation* caller;
    ~Restore() { evaluator.activation_ = caller; }
  } restore{*this, caller};
  if (function.has_functions) {
    budget_.bytes -= bytes;  // for good: a macro may see it as long as the rendering takes
    kept_.push_back(std::move(activation));
  }
  enter(function.frame);
  bind(function, arguments);
  Output out(budget_);
  run(function.body, out);
  return make_string(budget_, std::move(out.text()));
}

void Evaluator::bind(const Function& function, Arguments& arguments) {
  const size_t count = function.parameters.size();
  std::vector<bool> given(count, false);
  for (size_t i = 0; i < std::min(count, arguments.positional.size()); ++i) {
    slot(function.parameters[i]->slot) = std::move(arguments.positional[i]);
    given[i] = true;
  }
  std::vector<Value> more;
  for (size_t i = count; i < arguments.positional.size(); ++i) more.push_back(std::move(arguments.positional[i]));
  if (!more.empty() && !function.takes_varargs)
    fail("macro {}: found {} arguments, expected at most {}", function.name, arguments.positional.size(), count);
  if (function.takes_varargs) slot(function.varargs) = make_list(budget_, std::move(more), Sequence::Tuple);
  std::vector<std::pair<Value, Value>> named;
  bool called = false;
  budget_.step(arguments.named.size() * count / 8);
  for (auto& [name, value] : arguments.named) {
    const auto parameter =
        std::ranges::find_if(function.parameters, [&wanted = name](const ExprPtr& p) { return p->name == wanted; });
    if (parameter != function.parameters.end()) {
      const auto index = static_cast<size_t>(parameter - function.parameters.begin());
      if (given[index]) fail("macro {}: found argument '{}' twice", function.name, name);
      slot((*parameter)->slot) = std::move(value);
      given[index] = true;
    } else if (name == "caller" && function.takes_caller) {
      slot(function.caller) = std::move(value);
      called = true;
    } else if (function.takes_kwargs && name != "caller") {
      named.emplace_back(make_string(budget_, Text(std::string(name))), std::move(value));
    } else {
      fail("macro {}: found argument '{}', which it does not take", function.name, name);
    }
  }
  if (function.takes_kwargs) slot(function.kwargs) = make_dict(budget_, std::move(named));
  const size_t without = count - function.defaults.size();
  for (size_t i = 0; i < count; ++i) {
    if (given[i]) continue;
    const Expr& parameter = *function.parameters[i];
    if (called && parameter.slot.index == function.caller.index && parameter.name == "caller") continue;
    slot(parameter.slot) = i < without ? Value::undefined(&parameter) : eval(*function.defaults[i - without]);
  }
}

Value Evaluator::call(const Value& callee, Arguments& arguments) {
  if (callee.is(Kind::Function)) {
    const auto& function = callee.as<FunctionRep>();
    if (function.macro) return call_macro(*function.macro, function.home, arguments);
    return run_builtin(*function.builtin, *this, function.self, arguments);
  }
  if (callee.is(Kind::Object)) return call_object(callee.as<ObjectRep>(), "", arguments);
  refuse_undefined(callee);
  fail("found a {} called, expected a function", type_name(callee));
}

Value Evaluator::call_object(ObjectRep& object, std::string_view name, Arguments& arguments) {
  if (object.type == ObjectRep::Type::Joiner && name.empty()) {
    return object.at++ == 0 ? make_string(budget_, Text()) : object.items[0];
  }
  if (object.type == ObjectRep::Type::Cycler && name == "next") {
    Value v = object.items[object.at];
    object.at = (object.at + 1) % object.items.size();
    return v;
  }
  if (object.type == ObjectRep::Type::Cycler && name == "reset") {
    object.at = 0;
    return Value::none();
  }
  if (object.type == ObjectRep::Type::Loop && name == "cycle") {
    if (arguments.positional.empty()) fail("loop.cycle: found no arguments");
    return arguments.positional[object.at % arguments.positional.size()];
  }
  fail("found '{}' called, which no loop, cycler or joiner has here", name);
}

Value Evaluator::object_attribute(const ObjectRep& object, const Expr& expr) {
  const std::string_view name = expr.name;
  const auto at = static_cast<int64_t>(object.at);
  if (object.type == ObjectRep::Type::Cycler && name == "current") return object.items[object.at];
  if (object.type != ObjectRep::Type::Loop) return Value::undefined(&expr);
  const auto& items = object.items[0].as<ListRep>().items;
  const auto count = static_cast<int64_t>(items.size());
  if (name == "index") return Value(at + 1);
  if (name == "index0") return Value(at);
  if (name == "revindex") return Value(count - at);
  if (name == "revindex0") return Value(count - at - 1);
  if (name == "first") return Value(at == 0);
  if (name == "last") return Value(at + 1 == count);
  if (name == "length") return Value(count);
  if (name == "depth") return Value(int64_t{1});
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem" && at > 0) return items[object.at - 1];
  if (name == "nextitem" && at + 1 < count) return items[object.at + 1];
  return Value::undefined(&expr);
}

}  // namespace snug::jinja
