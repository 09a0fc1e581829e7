// Gives the fields of one record under the names that snug looks for, for the readers of shapes.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/shapes.h"

namespace snug {

// Returns whether a list of names has one.
template <class Names>
bool is_in(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Refers to all its arguments, which must outlive it.
class RecordFields {
 public:
  // `text` is the record as it is written; without it, its keys are taken to stand in alphabetical order.
  RecordFields(const Json& record, const ShapeOptions& options, const std::string& place, std::string_view text = {})
      : record_(record, place), options_(options), place_(place), text_(text) {}

  // Returns the record's name of a field.
  std::string key(const std::string& name) const {
    const auto found = options_.columns.find(name);
    return found == options_.columns.end() ? name : found->second;
  }
  bool has(const std::string& name) const { return record_.has(key(name)); }
  std::string text(const std::string& name) const { return has(name) ? record_.string(key(name)) : missing(name); }
  std::string text_or_nothing(const std::string& name) const { return record_.string(key(name), ""); }
  // Returns a list. Throws UserError if it is missing or no list.
  const Json& list(const std::string& name) const {
    if (!has(name)) missing(name);
    const Json& found = record_.at(key(name));
    if (!found.is_array()) record_.fail(key(name), "a list");
    return found;
  }
  const JsonObject& object() const { return record_; }
  const ShapeOptions& options() const { return options_; }
  const std::string& place() const { return place_; }
  // Returns a value of the record, by the record's name of it, with keys in the order in which they are written; a text
  // is read as JSON. Throws UserError if it is none.
  jinja::Value ordered(const std::string& key) const;
  // Throws UserError that says that the field is null, or which keys there are instead.
  [[noreturn]] std::string missing(const std::string& name) const;

 private:
  JsonObject record_;
  const ShapeOptions& options_;
  const std::string& place_;
  std::string_view text_;
  mutable std::optional<jinja::Value> ordered_ = {};
};

// Reads a key that says true or false, 1 or 0, or, as tables write them, the texts of these. Throws UserError
// otherwise.
bool read_flag(const JsonObject& object, std::string_view key, std::string_view expected);

// Reads a weight: a number, also as a text, or true or false for 1 or 0. Throws UserError otherwise.
float read_weight(const JsonObject& object, std::string_view key);

// Returns the names in a prompt pattern.
std::vector<std::string> prompt_fields(const ShapeOptions& options);

// Adds the record's own system text, if it has one, as a turn.
void add_system(const RecordFields& fields, Conversation& out);
// Returns the turns before a reply: system, history and the question, which is the text of the field `name` or, if that
// is empty, the prompt pattern or instruction and input.
Conversation read_question(const RecordFields& fields, const std::string& name = "");
// Returns the messages of the list under a name; unknown keys that are passed over are added to `ignored`. Throws
// UserError for a system message if the record has a system text of its own.
Conversation read_messages(const RecordFields& fields, const std::string& name, std::vector<std::string>& ignored);
// Returns the messages of a field of a reply, or of an element of it: a text is what an assistant says, an object is
// one message. Throws UserError as read_messages() does.
Conversation read_reply(const RecordFields& fields, const std::string& name, std::optional<size_t> element,
                        std::vector<std::string>& ignored);

// Returns the tools that may be called, each as {"type": "function", "function": {...}}; empty if the record has none.
// Throws UserError for anything but a list of such objects, or of the functions alone.
std::vector<jinja::Value> read_tools(const RecordFields& fields);
// Returns the calls of a message in that form. `ordered` is its value under the key, as from RecordFields::ordered().
std::vector<jinja::Value> read_calls(const JsonObject& message, const std::string& key, const jinja::Value& ordered);

// Returns the documents of a record of token ids: several where position_ids begin again at 0.
//   attention_mask                               0 only at the ends, which are cut off
//   loss_mask, completion_mask, assistant_masks  0 in any of them: no loss
//   token_type_ids                               only 0
std::vector<TokenSample> read_tokens(const RecordFields& fields);
// Returns the ids of a field without what an attention mask hides, and the labels of another; no labels if the record
// has none.
TokenSample read_tokens(const RecordFields& fields, const std::string& ids, const std::string& labels,
                        const std::string& mask);

// Names the fields of better and worse replies, as programs have them.
inline constexpr std::array<std::array<std::string_view, 2>, 3> kReplyFields = {
    {{"chosen", "rejected"}, {"chosen_response", "rejected_response"}, {"chosen_messages", "rejected_messages"}}};
// Return whether a record has the fields of preferences or of labelled replies, which of its fields are read, and what
// they say.
bool has_answers(const RecordFields& fields, DataFormat format);
std::vector<std::string> fields_of_answers(const RecordFields& fields, DataFormat format);
Answers read_answers(const RecordFields& fields, DataFormat format, std::vector<std::string>& ignored);
// Returns whether a text begins as a list of messages does, or a message, written as JSON or as Python prints it.
bool begins_as_messages(std::string_view text, bool or_message);

}  // namespace snug
