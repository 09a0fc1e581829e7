// Defines the tree into which a chat template is parsed. Names are resolved (jinja_scope.h) to slots before anything
// runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "format/jinja_value.h"

namespace snug::jinja {

struct Builtin;
struct MethodSet;

enum class Op : uint8_t {
  Constant,
  Name,
  NamespaceName,  // NAME.ATTRIBUTE as a target of set
  Tuple,
  List,
  Dict,  // key, value, key, value, ...
  Attribute,
  Item,
  Slice,   // object, begin, end, step; absent parts are null
  Call,    // callee, positional arguments, then those that `keys` name
  Filter,  // subject (null where a block is), arguments as Call's
  Test,
  Not,
  And,
  Or,
  Negative,
  Positive,
  Add,
  Subtract,
  Multiply,
  Divide,
  FloorDivide,
  Modulo,
  Power,
  Concat,
  Compare,      // operands; `comparisons` between them
  Conditional,  // condition, value, other (may be null)
};

enum class Comparison : uint8_t { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// Says where a name's value lies: in the activation `hops` functions out.
struct Slot {
  uint32_t hops = 0, index = 0;
};

struct Expr {
  Op op = Op::Constant;
  uint16_t height = 1;  // of the tree below; bounded, so that no walk runs out of stack
  uint32_t line = 0;
  Slot slot = {};              // Name, NamespaceName
  std::string name = {};       // Name, Attribute, Filter, Test; of a NamespaceName the namespace's
  std::string attribute = {};  // NamespaceName
  Value constant = {};
  std::vector<ExprPtr> parts = {};
  std::vector<std::string> keys = {};
  std::vector<Comparison> comparisons = {};
  const Builtin* builtin = nullptr;    // Filter, Test; null if none has the name
  const MethodSet* methods = nullptr;  // Attribute: methods of the name, if there are any
};

// Describes an undefined value by where it came from: "'messages', which is" or "attribute 'role', which is".
std::string described(const Expr& origin);

// Says with what a slot begins when its frame is entered.
struct SlotStart {
  enum class From : uint8_t { Nothing, Outer, Context };
  uint32_t index = 0;
  From from = From::Nothing;
  Slot outer = {};       // Outer
  uint32_t context = 0;  // Context: index of Program::context_names
};

struct Frame {
  std::vector<SlotStart> starts;
};

enum class Action : uint8_t {
  Text,
  Print,
  If,
  For,
  Set,
  SetBlock,
  Macro,
  CallBlock,
  FilterBlock,
  Generation,
  With,
  Break,
  Continue,
};

struct Statement;
using Block = std::vector<Statement>;

// Holds a macro, or the body of a call block.
struct Function {
  std::string name;
  std::vector<ExprPtr> parameters;  // Names
  std::vector<ExprPtr> defaults;    // of the last parameters
  Block body;
  Frame frame;
  uint32_t slots = 0;
  bool has_functions = false;  // functions within it see its slots
  bool takes_caller = false, takes_varargs = false, takes_kwargs = false;
  Slot caller, varargs, kwargs;  // slots in which they are passed
};

struct Statement {
  Action action = Action::Text;
  uint32_t line = 0;
  Text text = {};          // Text
  ExprPtr target = {};     // For, Set, SetBlock; the name of a Macro
  ExprPtr value = {};      // Print, For (what is iterated), Set, CallBlock (the call); the filter of a block, or null
  ExprPtr condition = {};  // For: selects items
  std::vector<std::pair<ExprPtr, Block>> branches = {};    // If
  std::vector<std::pair<ExprPtr, ExprPtr>> bindings = {};  // With: target, value
  Block body = {}, otherwise = {};
  Frame frame = {}, condition_frame = {}, otherwise_frame = {};
  bool uses_loop = false;  // For
  Slot loop = {};
  std::unique_ptr<Function> function = {};  // Macro, CallBlock
};

struct Program {
  Function root;
  std::vector<std::string> context_names;       // by SlotStart::context
  std::vector<std::unique_ptr<Rep>> constants;  // of the tree, which is destroyed first
  ~Program() { root = {}; }
};

// Returns a value that belongs to the program's tree.
Value make_constant(Program& program, Text text);

}  // namespace snug::jinja
