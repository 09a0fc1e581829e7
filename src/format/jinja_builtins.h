// Declares what templates may call by name: filters, tests, methods of strings, lists and dictionaries, and global
// functions.
#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "format/jinja_value.h"

namespace snug::jinja {

class Evaluator;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

constexpr size_t kMaxParameters = 6;

struct BuiltinCall {
  Evaluator& evaluator;
  Budget& budget;
  const Value& self;  // the subject of a filter or test, or a method's object; undefined for a global function
  Arguments& arguments;
  std::array<const Value*, kMaxParameters> given{};  // by parameter; null if the call does not give it
};

struct Builtin {
  std::string_view name = {};
  Value (*run)(BuiltinCall& call) = nullptr;
  size_t required = 0;
  std::array<std::string_view, kMaxParameters> parameters = {};  // names, empty behind the last
  bool variadic = false;                                         // takes `arguments` as they are
};

// Binds a call's arguments and runs it. Throws Failure for arguments that it does not take.
Value run_builtin(const Builtin& builtin, Evaluator& evaluator, const Value& self, Arguments& arguments);

// Return the builtin of a name, or null.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);

struct MethodSet {
  std::string_view name;
  Builtin string = {}, list = {}, dict = {};  // without `run` if values of the kind have none

  const Builtin* of(const Value& v) const;
};
const MethodSet* find_methods(std::string_view name);

// Return parts of these tables, which stand in files of their own.
std::vector<Builtin> text_filters();
std::vector<Builtin> sequence_filters();

// Return the value of an argument. Throw Failure that names it if it is of another kind.
int64_t integer_of(const Value& v, std::string_view what);
std::string_view string_of(const Value& v, std::string_view what);
bool flag(const BuiltinCall& call, size_t parameter, bool otherwise);

}  // namespace snug::jinja
