// Reads tools of a record and calls of its messages. Templates write their keys in the order in which they stand.
#include <utility>

#include "base/ascii.h"
#include "data/record_fields.h"
#include "format/jinja_json.h"

namespace snug {
namespace {

using jinja::DictRep;
using jinja::Kind;
using jinja::Value;

const Value* find(const Value& object, std::string_view key) {
  return object.is(Kind::Dict) ? object.as<DictRep>().find(key) : nullptr;
}

// Returns the function of a tool or a call, within an object that says that it is one.
Value as_function(const Value& one, const JsonObject& object, std::string_view key, std::string_view expected) {
  const Value* const function = find(one, "function");
  const Value* const named = function && function->is(Kind::Dict) ? function : &one;
  const Value* const name = find(*named, "name");
  if (!name || !name->is(Kind::String) || jinja::text_of(*name).empty()) object.fail(key, expected);
  if (named == function) return one;
  auto* const whole = new DictRep;
  const Value out(Kind::Dict, whole);
  const Value word = jinja::make_string(jinja::Text("function"));
  whole->set(jinja::make_string(jinja::Text("type")), word);
  whole->set(word, one);
  return out;
}

std::vector<Value> functions_of(const Value& list, const JsonObject& object, std::string_view key,
                                std::string_view expected) {
  std::vector<Value> out;
  if (list.is(Kind::None) || (list.is(Kind::Dict) && list.as<DictRep>().entries.empty())) return out;
  if (!list.is(Kind::List)) object.fail(key, expected);
  for (const Value& one : list.as<jinja::ListRep>().items) out.push_back(as_function(one, object, key, expected));
  return out;
}

}  // namespace

Value RecordFields::ordered(const std::string& key) const {
  try {
    if (!ordered_) ordered_ = jinja::value_of_json(text_.empty() ? std::string_view(record_.value().dump()) : text_);
    const Value* const found = find(*ordered_, key);
    if (!found) return {};
    if (!found->is(Kind::String)) return *found;
    const std::string_view text = jinja::view_of(*found);
    return white_before(text) == text.size() ? Value::none() : jinja::value_of_json(text);
  } catch (const jinja::Failure& failure) {
    record_.fail(key, fmt::format("a list, or a text of one as JSON ({})", failure.what()));
  }
}

std::vector<Value> read_tools(const RecordFields& fields) {
  if (!fields.has("tools")) return {};
  const std::string key = fields.key("tools");
  return functions_of(fields.ordered(key), fields.object(), key,
                      "a list of tools: {\"type\": \"function\", \"function\": {\"name\": ..., ...}}");
}

std::vector<Value> read_calls(const JsonObject& message, const std::string& key, const Value& ordered) {
  return functions_of(ordered, message, key, "a list of calls: {\"function\": {\"name\": ..., \"arguments\": {...}}}");
}

}  // namespace snug
