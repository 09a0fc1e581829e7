// Resolves which slot a name means. The rules are Jinja's, including their surprises: a frame is analysed as a whole
// before it runs, so a name that it assigns to somewhere belongs to it everywhere in it.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "format/jinja_parser.h"

namespace snug::jinja {
namespace {

constexpr size_t kMaxSlots = 1 << 16;

// A function while its frames are resolved.
struct FunctionScope {
  Function* function = nullptr;
  FunctionScope* outer = nullptr;
  uint32_t depth = 0;
  std::map<std::pair<int, std::string>, uint32_t> slots = {};  // by level of frame and name

  uint32_t slot_of(int level, const std::string& name) {
    const auto next = static_cast<uint32_t>(slots.size());
    if (next >= kMaxSlots) fail("found more than {} variables in one function", kMaxSlots);
    const uint32_t slot = slots.try_emplace({level, name}, next).first->second;
    function->slots = static_cast<uint32_t>(slots.size());
    return slot;
  }
};

struct Symbol {
  bool parameter = false;
  SlotStart start = {};
};

// Holds the names of a frame, or what a branch within it adds to them.
struct Names {
  FunctionScope* function = nullptr;
  Names* outer = nullptr;   // the frame around
  Names* before = nullptr;  // for a branch: what the frame had before it
  int level = 0;
  Statement* loop = nullptr;  // the loop whose body the frame is
  std::map<std::string, Symbol> own = {};
  std::set<std::string> stores = {};

  const Symbol* find_own(const std::string& name) const {
    for (const Names* names = this; names; names = names->before) {
      if (const auto found = names->own.find(name); found != names->own.end()) return &found->second;
    }
    return nullptr;
  }
  bool has_stored(const std::string& name) const {
    for (const Names* names = this; names; names = names->before) {
      if (names->stores.contains(name)) return true;
    }
    return false;
  }
};

struct Found {
  Names* names = nullptr;
  uint32_t index = 0;
};

std::optional<Found> find(Names* names, const std::string& name) {
  for (; names; names = names->outer) {
    if (const Symbol* const symbol = names->find_own(name)) return Found{names, symbol->start.index};
  }
  return {};
}

Slot slot_from(const Names& names, const Found& found) {
  return {.hops = names.function->depth - found.names->function->depth, .index = found.index};
}

class Resolver {
 public:
  explicit Resolver(Program& program) : program_(program) {}

  void run() {
    FunctionScope scope{.function = &program_.root};
    Names names{.function = &scope};
    analyse(program_.root.body, names);
    finish(names, program_.root.frame);
    resolve(program_.root.body, names);
  }

 private:
  // --- What a frame's statements load and store

  void define(Names& names, const std::string& name, Symbol symbol) {
    symbol.start.index = names.function->slot_of(names.level, name);
    names.own[name] = symbol;
  }

  Symbol from_context(const std::string& name) {
    const auto next = static_cast<uint32_t>(context_.size());
    const auto [found, added] = context_.try_emplace(name, next);
    if (added) program_.context_names.push_back(name);
    return {.start = {.from = SlotStart::From::Context, .context = found->second}};
  }

  static Symbol from_outer(const Names& names, const Found& found) {
    return {.start = {.from = SlotStart::From::Outer, .outer = slot_from(names, found)}};
  }

  void load(Names& names, const std::string& name) {
    if (!find(&names, name)) define(names, name, from_context(name));
  }

  void store(Names& names, const std::string& name) {
    names.stores.insert(name);
    if (names.find_own(name)) return;
    const auto found = find(names.outer, name);
    define(names, name, found ? from_outer(names, *found) : Symbol{});
  }

  void declare(Names& names, const std::string& name) {
    names.stores.insert(name);
    define(names, name, {.parameter = true});
  }

  void load_all(const Expr* expr, Names& names) {
    if (!expr) return;
    if (expr->op == Op::Name || expr->op == Op::NamespaceName) load(names, expr->name);
    for (const ExprPtr& part : expr->parts) load_all(part.get(), names);
  }

  void store_all(const Expr& target, Names& names, bool as_parameters) {
    if (target.op == Op::NamespaceName) return load(names, target.name);
    if (target.op == Op::Name) return as_parameters ? declare(names, target.name) : store(names, target.name);
    for (const ExprPtr& part : target.parts) store_all(*part, names, as_parameters);
  }

  void analyse(const Block& block, Names& names) {
    for (const Statement& s : block) analyse(s, names);
  }

  void analyse(const Statement& s, Names& names) {
    switch (s.action) {
      case Action::If:
        return analyse_if(s, 0, names);
      case Action::Set:
        load_all(s.value.get(), names);
        return store_all(*s.target, names, /*as_parameters=*/false);
      case Action::SetBlock:
      case Action::Macro:
        return store_all(*s.target, names, /*as_parameters=*/false);
      case Action::With:
        for (const auto& [target, value] : s.bindings) load_all(value.get(), names);
        return;
      case Action::Print:
      case Action::For:
      case Action::CallBlock:
      case Action::FilterBlock:
        return load_all(s.value.get(), names);
      default:
        return;
    }
  }

  // An elif is an if within the branch before it. Names that not all branches store begin as those outside.
  void analyse_if(const Statement& s, size_t first, Names& names) {
    load_all(s.branches[first].first.get(), names);
    std::array<Names, 3> branches;
    for (Names& branch : branches) {
      branch = {.function = names.function, .outer = names.outer, .before = &names, .level = names.level};
    }
    analyse(s.branches[first].second, branches[0]);
    if (first == 0) {
      for (size_t i = 1; i < s.branches.size(); ++i) analyse_if(s, i, branches[1]);
      analyse(s.otherwise, branches[2]);
    }
    merge(branches, names);
  }

  void merge(std::array<Names, 3>& branches, Names& names) {
    std::map<std::string, size_t> counts;
    for (const Names& branch : branches) {
      for (const std::string& name : branch.stores) {
        if (!names.has_stored(name)) ++counts[name];
      }
    }
    for (Names& branch : branches) {
      for (auto& [name, symbol] : branch.own) names.own[name] = symbol;
      names.stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const auto& [name, count] : counts) {
      if (count == branches.size()) continue;
      const auto found = find(names.outer, name);
      define(names, name, found ? from_outer(names, *found) : from_context(name));
    }
  }

  // --- Frames and the names in them

  static void finish(const Names& names, Frame& frame) {
    for (const auto& [name, symbol] : names.own) {
      if (!symbol.parameter) frame.starts.push_back(symbol.start);
    }
  }

  Names inner(Names& names) const { return {.function = names.function, .outer = &names, .level = names.level + 1}; }

  void resolve(Expr* expr, Names& names) {
    if (!expr) return;
    if (expr->op == Op::Name || expr->op == Op::NamespaceName) {
      const auto found = find(&names, expr->name);
      if (!found) fail("found the name '{}' where none can be", expr->name);
      expr->slot = slot_from(names, *found);
      if (expr->name == "loop" && found->names->loop) found->names->loop->uses_loop = true;
    }
    for (const ExprPtr& part : expr->parts) resolve(part.get(), names);
  }

  void resolve(Block& block, Names& names) {
    for (Statement& s : block) resolve(s, names);
  }

  void resolve(Statement& s, Names& names) {
    switch (s.action) {
      case Action::If:
        for (auto& [condition, then] : s.branches) {
          resolve(condition.get(), names);
          resolve(then, names);
        }
        return resolve(s.otherwise, names);
      case Action::For:
        return resolve_for(s, names);
      case Action::Macro:
        resolve(s.target.get(), names);
        return resolve_function(*s.function, names);
      case Action::CallBlock:
        resolve(s.value.get(), names);
        return resolve_function(*s.function, names);
      case Action::SetBlock:
      case Action::FilterBlock:
      case Action::Generation:
      case Action::With:
        return resolve_frame(s, names);
      default:
        resolve(s.target.get(), names);
        return resolve(s.value.get(), names);
    }
  }

  void resolve_for(Statement& s, Names& names) {
    resolve(s.value.get(), names);
    Names body = inner(names);
    body.loop = &s;
    declare(body, "loop");
    store_all(*s.target, body, /*as_parameters=*/true);
    analyse(s.body, body);
    finish(body, s.frame);
    resolve(s.target.get(), body);
    s.loop = {.index = body.find_own("loop")->start.index};
    if (s.condition) {
      Names condition = inner(names);
      store_all(*s.target, condition, /*as_parameters=*/true);
      load_all(s.condition.get(), condition);
      finish(condition, s.condition_frame);
      resolve(s.condition.get(), condition);
    }
    resolve(s.body, body);
    Names otherwise = inner(names);
    analyse(s.otherwise, otherwise);
    finish(otherwise, s.otherwise_frame);
    resolve(s.otherwise, otherwise);
  }

  void resolve_frame(Statement& s, Names& names) {
    Names frame = inner(names);
    for (auto& [target, value] : s.bindings) {
      resolve(value.get(), names);
      store_all(*target, frame, /*as_parameters=*/true);
    }
    analyse(s.body, frame);
    load_all(s.value.get(), frame);
    finish(frame, s.frame);
    for (auto& [target, value] : s.bindings) resolve(target.get(), frame);
    resolve(s.target.get(), names);
    resolve(s.value.get(), frame);
    resolve(s.body, frame);
  }

  void resolve_function(Function& function, Names& names) {
    names.function->function->has_functions = true;
    FunctionScope scope{.function = &function, .outer = names.function, .depth = names.function->depth + 1};
    Names frame{.function = &scope, .outer = &names, .level = names.level + 1};
    for (const ExprPtr& parameter : function.parameters) declare(frame, parameter->name);
    const auto special = [&](const std::string& name, bool& takes, Slot& slot) {
      const auto same = [&](const ExprPtr& parameter) { return parameter->name == name; };
      if (!mentions(function.body, name)) return;
      takes = true;
      if (std::ranges::none_of(function.parameters, same)) declare(frame, name);
      slot = {.index = frame.find_own(name)->start.index};
      if (name != "caller") takes = std::ranges::none_of(function.parameters, same);
    };
    special("caller", function.takes_caller, function.caller);
    special("kwargs", function.takes_kwargs, function.kwargs);
    special("varargs", function.takes_varargs, function.varargs);
    for (const ExprPtr& value : function.defaults) load_all(value.get(), frame);
    analyse(function.body, frame);
    finish(frame, function.frame);
    for (const ExprPtr& parameter : function.parameters) resolve(parameter.get(), frame);
    for (const ExprPtr& value : function.defaults) resolve(value.get(), frame);
    resolve(function.body, frame);
  }

  static bool mentions(const Expr* expr, const std::string& name) {
    if (!expr) return false;
    if (expr->op == Op::Name && expr->name == name) return true;
    return std::ranges::any_of(expr->parts, [&](const ExprPtr& part) { return mentions(part.get(), name); });
  }

  static bool mentions(const Block& block, const std::string& name) {
    return std::ranges::any_of(block, [&](const Statement& s) {
      const auto in_pair = [&](const auto& pair) { return mentions(pair.second.get(), name); };
      const auto in_branch = [&](const auto& branch) {
        return mentions(branch.first.get(), name) || mentions(branch.second, name);
      };
      return mentions(s.value.get(), name) || mentions(s.condition.get(), name) ||
             std::ranges::any_of(s.branches, in_branch) || std::ranges::any_of(s.bindings, in_pair) ||
             mentions(s.body, name) || mentions(s.otherwise, name) || (s.function && mentions(s.function->body, name));
    });
  }

  Program& program_;
  std::map<std::string, uint32_t> context_;
};

}  // namespace

void resolve_names(Program& program) { Resolver(program).run(); }

}  // namespace snug::jinja
