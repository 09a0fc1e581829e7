// Lists the keys of snug's job file that translations write, with their defaults and the values that they take, as this
// room knows nothing of who reads them; a test compares the list with the options themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace snug {

struct OurKey {
  enum class Kind : uint8_t { Text, Word, List, Map, Integer, Number, Bool, Cadence } kind = Kind::Text;
  std::string_view name;
  std::string_view fallback;  // its default; empty if it has none or depends on others
  double least = 0, most = 0;
  std::string_view words = {};  // of Word, and others that a number may be: with spaces
};

// Returns the keys in the order in which job files have them.
std::span<const OurKey> our_keys();
// Returns the key of a name, which must be one.
const OurKey& our_key(std::string_view name);

// Returns the value as snug reads it ("3.0" -> "3" of a whole number, "True" -> "true"); nothing if it reads no such
// value.
std::optional<std::string> our_value(const OurKey& key, const std::string& value);
// Says what the key takes: "a number from 0 to 1".
std::string expected(const OurKey& key);
// Returns whether two values of a key are the same to snug.
bool same_value(const OurKey& key, std::string_view a, std::string_view b);

// Returns whether a word is one of those with spaces between them.
bool has_word(std::string_view words, std::string_view word);
// Returns the number that a text is; nothing if it is none.
std::optional<double> read_number(std::string_view text);
// Returns it as the shortest text: "64", "0.85".
std::string number_text(double value);

}  // namespace snug
