// Runs a chat template's tree.
#pragma once

#include <ctime>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "format/jinja_ast.h"
#include "format/jinja_builtins.h"

namespace snug::jinja {

// Holds the variables of one call of a function. Macros see those of the call in which they were defined.
struct Activation {
  std::vector<Value> slots;
  Activation* outer = nullptr;
};

// A value that can be called: a builtin, of `self` if it is a method, or a macro.
struct FunctionRep : Rep {
  const Builtin* builtin = nullptr;
  Value self;
  const Function* macro = nullptr;
  Activation* home = nullptr;
};

// A value that is `loop`, or that cycler() or joiner() returned.
struct ObjectRep : Rep {
  enum class Type : uint8_t { Loop, Cycler, Joiner };
  Type type = Type::Loop;
  std::vector<Value> items;  // the items that are iterated or cycled; a joiner's separator
  size_t at = 0;
};

// Holds text that is being written, and counts it against a budget while it grows.
class Output {
 public:
  explicit Output(Budget& budget) : budget_(budget) {}
  ~Output() { budget_.bytes += counted_; }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  Text& text() { return text_; }
  // Counts what has been appended since the last call.
  void count() {
    const uint64_t bytes = text_.footprint();
    if (bytes == counted_) return;
    budget_.ask(bytes - counted_);
    budget_.bytes -= bytes - counted_;
    counted_ = bytes;
  }

 private:
  Budget& budget_;
  Text text_;
  uint64_t counted_ = 0;
};

class Evaluator {
 public:
  // `context` holds a value for each of the program's names of the context. All must outlive the evaluator, with the
  // budget. `now` is what strftime_now() tells.
  Evaluator(const Program& program, std::vector<Value> context, const std::tm& now, Budget& budget);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // Returns the rendering. Throws Failure; line() is then about where.
  Text run();
  uint32_t line() const { return line_; }

  // --- For builtins
  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }
  Value call(const Value& callee, Arguments& arguments);
  // Returns OBJECT[KEY], undefined if there is none. `origin` is what an undefined value names.
  Value item(const Value& object, const Value& key, const Expr* origin = nullptr);
  Value slice(const Value& object, const Value& begin, const Value& end, const Value& step);
  Value binary(Op op, const Value& a, const Value& b);
  bool contains(const Value& container, const Value& v);
  // Returns all items that a loop over it takes; an iterator has been read then.
  std::vector<Value> items_of(const Value& v);
  Value make_namespace(Arguments& arguments);
  Value make_object(ObjectRep::Type type, std::vector<Value> items);

 private:
  enum class Flow : uint8_t { Next, Break, Continue };
  // Counts how deep calls, blocks and expressions are within each other while it exists.
  class Depth {
   public:
    explicit Depth(Evaluator& evaluator) : depth_(evaluator.depth_) {
      if (depth_ >= kMaxDepth) fail("found macros or expressions more than {} deep", kMaxDepth);
      ++depth_;
    }
    ~Depth() { --depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    static constexpr uint32_t kMaxDepth = 1000;
    uint32_t& depth_;
  };

  Flow run(const Block& block, Output& out);
  Flow run(const Statement& s, Output& out);
  Flow run_if(const Statement& s, Output& out);
  Flow run_for(const Statement& s, Output& out);
  Flow run_captured(const Statement& s, Output& out);
  void print(const Expr& expr, Output& out);
  void append_value(const Value& v, Output& out);
  void enter(const Frame& frame);
  void assign(const Expr& target, Value v);
  void unpack(const Expr& target, const Value& v);
  bool chooses(const Statement& s, const Value& item);
  std::vector<Value> chosen(const Statement& s, std::vector<Value> items);

  Value eval(const Expr& expr);
  Value eval_rest(const Expr& expr);
  Value eval_attribute(const Expr& expr);
  Value attribute_of(const Value& object, const Expr& expr);
  Value eval_sequence(const Expr& expr);
  Value eval_compare(const Expr& expr);
  bool holds(Comparison which, const Value& a, const Value& b);
  Value eval_joined(const Expr& expr);
  bool operands(const Expr& expr, std::vector<Value>& out);
  Value joined(const std::vector<Value>& values);
  Value eval_call(const Expr& expr);
  Value eval_filter(const Expr& expr, const Value* subject);
  Value eval_test(const Expr& expr);
  Value eval_slice(const Expr& expr);
  void arguments_of(const Expr& expr, Arguments& arguments);
  Value call_macro(const Function& function, Activation* home, Arguments& arguments);
  void bind(const Function& function, Arguments& arguments);
  Value call_object(ObjectRep& object, std::string_view name, Arguments& arguments);
  Value object_attribute(const ObjectRep& object, const Expr& expr);
  Value function_of(const Function& function);

  Value& slot(const Slot& at) {
    Activation* activation = activation_;
    for (uint32_t i = 0; i < at.hops; ++i) activation = activation->outer;
    return activation->slots[at.index];
  }

  const Program& program_;
  const std::vector<Value> context_;
  const std::tm now_;
  Budget& budget_;
  uint32_t line_ = 1;
  uint32_t depth_ = 0;
  Activation* activation_ = nullptr;
  std::vector<std::unique_ptr<Activation>> kept_;  // that macros may see when their call is over
  std::vector<Value> namespaces_;                  // all of them, so that none holds itself at the end
};

}  // namespace snug::jinja
