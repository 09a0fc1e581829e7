// The fields of one record under the names that snug looks for, for the readers of shapes.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/shapes.h"

namespace snug {

// Whether a list of names has one.
template <class Names>
bool is_in(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Refers to all three, which must outlive it.
class RecordFields {
 public:
  // `text`: the record as it is written; without, its keys are taken to stand in alphabetical order.
  RecordFields(const Json& record, const ShapeOptions& options, const std::string& place, std::string_view text = {})
      : record_(record, place), options_(options), place_(place), text_(text) {}

  // The record's name of a field.
  std::string key(const std::string& name) const {
    const auto found = options_.columns.find(name);
    return found == options_.columns.end() ? name : found->second;
  }
  bool has(const std::string& name) const { return record_.has(key(name)); }
  std::string text(const std::string& name) const { return has(name) ? record_.string(key(name)) : missing(name); }
  std::string text_or_nothing(const std::string& name) const { return record_.string(key(name), ""); }
  // UserError if it is missing or no list.
  const Json& list(const std::string& name) const {
    if (!has(name)) missing(name);
    const Json& found = record_.at(key(name));
    if (!found.is_array()) record_.fail(key(name), "a list");
    return found;
  }
  const JsonObject& object() const { return record_; }
  const ShapeOptions& options() const { return options_; }
  const std::string& place() const { return place_; }
  // A value of the record, under the record's name of it, with keys in the order in which they are written; what is a
  // text is read as JSON. UserError if it is none.
  jinja::Value ordered(const std::string& key) const;
  // UserError that says that it is null, or which keys there are instead.
  [[noreturn]] std::string missing(const std::string& name) const;

 private:
  JsonObject record_;
  const ShapeOptions& options_;
  const std::string& place_;
  std::string_view text_;
  mutable std::optional<jinja::Value> ordered_ = {};
};

// What a key says by true or false, 1 or 0, or, as tables write them, the texts of these. UserError otherwise.
bool read_flag(const JsonObject& object, std::string_view key, std::string_view expected);

// What a weight is expected to be.
constexpr std::string_view kWeights = "0 or 1: other weights are not supported yet";

// Adds the record's own system text, if it has one, as a turn.
void add_system(const RecordFields& fields, Conversation& out);
// The messages of the list under a name; unknown keys that are passed over are added to `ignored`. UserError for a
// system message where the record has a system text of its own.
Conversation read_messages(const RecordFields& fields, const std::string& name, std::vector<std::string>& ignored);

// What may be called, as {"type": "function", "function": {...}} each; empty where the record has no tools. UserError
// for what is no list of such, or of the functions alone.
std::vector<jinja::Value> read_tools(const RecordFields& fields);
// The calls of a message likewise. `ordered`: its value under the key, as RecordFields::ordered() has it.
std::vector<jinja::Value> read_calls(const JsonObject& message, const std::string& key, const jinja::Value& ordered);

// The documents of a record of token ids: several where position_ids begin again at 0.
//   attention_mask                               0 at the ends alone: what is cut off
//   loss_mask, completion_mask, assistant_masks  0: no loss, in any of them
//   token_type_ids                               0 alone
std::vector<TokenSample> read_tokens(const RecordFields& fields);

}  // namespace snug
