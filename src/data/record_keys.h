// Judges keys of records that their shape does not read: which are refused, and which change nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"

namespace snug {

// Says what an object with keys is: a record of a shape (NamedAlpaca: options say what its input or prompt is; Answers:
// preferences of any kind), a message of one, or a part of a message's content.
enum class KeysOf { Alpaca, NamedAlpaca, Conversation, Text, Tokens, Answers, Message, Part };

// Goes through the keys for which is_read(key) is false; null, "" and empty values are passed over. Throws UserError
// for a key that is known to change what a sample teaches and, in messages and parts, for one that is not known to be
// harmless, except a message's name, which some templates render. That and other unknown keys are added to `ignored`. A
// list or an object is harmless under few names, and no value is whose name has one of the words loss, weight, train
// and mask. Names are compared without regard to case, '_' and '-'.
void check_keys(const JsonObject& object, KeysOf of, const std::function<bool(std::string_view)>& is_read,
                std::vector<std::string>& ignored);

// Returns whether a value is nothing: null, empty text, or made of nothing else, as tables have in every row. A text
// counts that is such JSON.
bool is_nothing(const Json& value);
// Returns whether the two are one name, without regard to case, '_' and '-'.
bool same_key(std::string_view a, std::string_view b);
// Returns whether a key is one of some names, which are separated by blanks.
bool is_among(std::string_view key, std::string_view names);

// Returns a line on keys that are passed over, with how many records have each: "FILE: keys ignored: "id" (3 records)".
// Of many keys it names the first and counts the others.
std::string ignored_keys_text(std::string_view file, const std::map<std::string, int64_t>& keys);

}  // namespace snug
