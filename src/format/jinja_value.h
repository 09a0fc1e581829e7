// Defines the values of a chat template: Python's, as far as templates see them. They are immutable except namespaces
// and iterators, shared by reference, and counted without atomics, so a value belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/jinja_text.h"
#include "format/json.h"

namespace snug::jinja {

struct Expr;

// Says why a template cannot be parsed or rendered, without its line. The caller that parses or renders turns it into a
// UserError.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

// Says that a rendering has used up its budget.
struct Exhausted : Failure {
  using Failure::Failure;
};

// Holds what a rendering may still use. Steps take about equal time, some 30 ns, so whatever takes time in proportion
// to its bytes or items takes steps in proportion; bytes are those that values hold at a time.
struct Budget {
  uint64_t steps = 0, bytes = 0;

  void step(uint64_t count = 1) {
    if (count > steps) throw Exhausted("found a template that takes too many steps for a conversation of this length");
    steps -= count;
  }
  // Asks for room before memory is reserved; it takes a step for every few bytes.
  void ask(uint64_t count) {
    if (count > bytes) throw Exhausted("found values of too many bytes for a conversation of this length");
    read(count);
  }
  // Takes the steps of bytes that are compared or copied at once.
  void read(uint64_t count) { step(count / 128); }
  // Takes the steps of bytes that are looked at one after another, as searches and code points are.
  void scan(uint64_t count) { step(count / 8); }
  // Takes the steps of characters that are written one by one.
  void rewrite(uint64_t count) { step(count); }
};

// Is the object to which a value refers. Constants of a template live as long as it and are not counted, so that
// threads may share it.
struct Rep {
  Rep() = default;
  Rep(const Rep&) = delete;
  Rep& operator=(const Rep&) = delete;
  virtual ~Rep() {
    if (budget) budget->bytes += charged;
  }

  uint32_t references = 0;
  uint16_t height = 0;  // depth of values within it, bounded so that no walk runs out of stack
  bool constant = false;
  Budget* budget = nullptr;
  uint64_t charged = 0;
};

// BigInt is an integer beyond 64 bits: it is printed and compared for equality, and nothing computes with it.
enum class Kind : uint8_t {
  Undefined,
  None,
  Bool,
  Int,
  Float,
  String,
  List,
  Dict,
  Function,
  Namespace,
  Object,
  BigInt
};

class Value {
 public:
  Value() = default;  // undefined
  explicit Value(bool b) : kind_(Kind::Bool) { payload_.integer = b; }
  explicit Value(int64_t i) : kind_(Kind::Int) { payload_.integer = i; }
  explicit Value(double d) : kind_(Kind::Float) { payload_.real = d; }
  Value(Kind kind, Rep* rep) : kind_(kind) {
    payload_.rep = rep;
    retain();
  }
  static Value none() {
    Value v;
    v.kind_ = Kind::None;
    return v;
  }
  // Returns an undefined value; `origin` is the expression that is undefined, for messages.
  static Value undefined(const Expr* origin) {
    Value v;
    v.payload_.origin = origin;
    return v;
  }
  Value(const Value& other) : kind_(other.kind_), mark_(other.mark_), payload_(other.payload_) { retain(); }
  Value(Value&& other) noexcept : kind_(other.kind_), mark_(other.mark_), payload_(other.payload_) {
    other.kind_ = Kind::None;
  }
  Value& operator=(const Value& other) {
    if (this != &other) *this = Value(other);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(mark_, other.mark_);
    std::swap(payload_, other.payload_);
    return *this;
  }
  ~Value() { release(); }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ == Kind::Bool || kind_ == Kind::Int || kind_ == Kind::Float; }
  bool is_integral() const { return kind_ == Kind::Bool || kind_ == Kind::Int; }
  int64_t integer() const { return payload_.integer; }  // of a Bool too
  double real() const { return kind_ == Kind::Float ? payload_.real : static_cast<double>(payload_.integer); }
  const Expr* origin() const { return payload_.origin; }
  // Returns where a value that is no string comes from: bytes that print it have this mark. Strings mark their own
  // bytes.
  Mark mark() const { return mark_; }
  void set_mark(Mark mark) { mark_ = mark; }
  // Returns the object of a value of a kind from String on.
  Rep* rep() const { return payload_.rep; }
  template <class R>
  R& as() const {
    return *static_cast<R*>(payload_.rep);
  }

 private:
  void retain() {
    if (kind_ >= Kind::String && !payload_.rep->constant) ++payload_.rep->references;
  }
  void release() {
    if (kind_ >= Kind::String && !payload_.rep->constant && --payload_.rep->references == 0) delete payload_.rep;
  }

  Kind kind_ = Kind::Undefined;
  Mark mark_ = 0;
  union Payload {
    int64_t integer;
    double real;
    Rep* rep;
    const Expr* origin = nullptr;
  } payload_;
};

struct StringRep : Rep {
  Text text;
  bool safe = false;  // from the filters safe and escape: adding it to another string escapes that one
};

// Says which of Python's sequences it is: list, tuple and range; iterators, as map() or select() return them, whose
// values are read once; and a dictionary's keys(), values() and items().
enum class Sequence : uint8_t { List, Tuple, Range, Iterator, Keys, Values, Items };

struct BigIntRep : Rep {
  explicit BigIntRep(std::string digits) : digits(std::move(digits)) {}
  std::string digits;  // as Python prints them
};

struct ListRep : Rep {
  Sequence sequence = Sequence::List;
  std::vector<Value> items;
  size_t next = 0;  // Iterator: items before it have been read
  int64_t end = 0;  // Range: where it ends, as printed
};

// Holds a dictionary, in the order of insertion.
struct DictRep : Rep {
  std::vector<std::pair<Value, Value>> entries;

  const Value* find(std::string_view key) const;
  const Value* find(Budget& budget, std::string_view key) const {
    budget.scan(key.size());
    return find(key);
  }
  // Finds a key of any kind that hashes. Numbers of different kinds that are equal are one key, as in Python.
  const Value* find(Budget& budget, const Value& key) const;
  // Sets the value of a key, replacing one that is there; without a budget, of a key that is a string. Throws Failure
  // if values lie too deep within each other.
  void set(Value key, Value value);
  void set(Budget& budget, Value key, Value value);

 private:
  void put(const Value* held, Value key, Value value);

  static constexpr size_t kSmall = 8;         // entries up to which a linear search is faster
  std::map<std::string_view, size_t> index_;  // by keys that are strings, once there are more; no keys make it slow
};

struct NamespaceRep : Rep {
  std::vector<std::pair<std::string, Value>> attributes;

  Value* find(Budget& budget, std::string_view name);
};

inline const Text& text_of(const Value& string) { return string.as<StringRep>().text; }
inline std::string_view view_of(const Value& string) { return string.as<StringRep>().text.bytes(); }
inline bool is_safe(const Value& v) { return v.is(Kind::String) && v.as<StringRep>().safe; }
inline bool is_sequence(const Value& v, Sequence sequence) {
  return v.is(Kind::List) && v.as<ListRep>().sequence == sequence;
}

// Return values without a budget, for what a conversation brings.
Value make_string(Text text);
Value make_list(std::vector<Value> items);

// Return values within a budget. Throw Failure when it is spent, or if values lie too deep within each other.
Value make_string(Budget& budget, Text text, bool safe = false);
Value make_list(Budget& budget, std::vector<Value> items, Sequence sequence = Sequence::List);
Value make_dict(Budget& budget, std::vector<std::pair<Value, Value>> entries);  // a later key replaces an equal one
// Counts `rep` against the budget, with the bytes that it holds besides itself. nest() sets its height above a part.
void charge(Budget& budget, Rep& rep, uint64_t bytes);
void nest(Rep& rep, const Value& part);

bool truth(const Value& v);
// Returns Python's name of its type, for messages: "str", "list", "Undefined".
std::string_view type_name(const Value& v);
// Throws Failure that names the expression, if a value is undefined.
void refuse_undefined(const Value& v);

bool equal(Budget& budget, const Value& a, const Value& b);
// Returns a negative number, 0 or a positive one. Throws Failure for values without an order.
int compare(Budget& budget, const Value& a, const Value& b);
// Returns whether Python could hash it, so that it may be a key.
bool hashes(Budget& budget, const Value& v);

// Return or append Python's repr() of a float, and str() and repr() of any value, with marked bytes.
std::string float_repr(double value);
void append_str(Budget& budget, const Value& v, Text& out);
void append_repr(Budget& budget, const Value& v, Text& out);
// Returns the text of str(); shared if the value is a string.
Value to_string(Budget& budget, const Value& v);

// Holds the options of json.dumps() that transformers' tojson takes.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  bool lines = false;  // indented
  std::string indent = {}, item_separator = ", ", key_separator = ": ";
};
void append_json(Budget& budget, const Value& v, const JsonStyle& style, Text& out);

}  // namespace snug::jinja
