// Reads JSON from foreign files: strict parsing, and objects read key by key so that every complaint names file and
// key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

using Json = nlohmann::json;

// Parses a whole JSON text (RFC 8259, UTF-8). Throws UserError with `source` (the file's name), line (if there are
// several) and column for broken syntax, broken UTF-8, a key that appears twice in one object, or more than 64 levels
// of nesting. `first_line` is where in its file the text begins, so that lines are the file's; columns of its first
// line are the text's.
Json parse_json(std::string_view text, std::string_view source, int64_t first_line = 1);

// Reads one object of a file. It does not own the JSON, which must outlive it.
class JsonObject {
 public:
  // `place` names the object inside the file ("rope_scaling"), empty for the file's own. Throws UserError if it is no
  // object.
  JsonObject(const Json& value, std::string source, std::string place = "");

  // Returns whether the key is there with a value other than null.
  bool has(std::string_view key) const;
  // Return a value; without a fallback the key is required, and null counts as absent. Throw UserError if the value has
  // another type or lies outside [low, high].
  int64_t integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) const;
  double number(std::string_view key, double low, double high, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  std::string string(std::string_view key, std::optional<std::string> fallback = {}) const;
  JsonObject object(std::string_view key) const;
  // Returns the value as it stands; the key must be there.
  const Json& at(std::string_view key) const;
  const Json& value() const { return *value_; }
  const std::string& source() const { return source_; }

  // Returns "<file>, key '<place.key>'".
  std::string where(std::string_view key) const;
  // Throws UserError "<file>, key '<place.key>': found <value>, expected <expected>".
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  std::string path_to(std::string_view key) const;

  const Json* value_;
  std::string source_, place_;
};

// Returns a value on one line for a message, cut after about 60 characters.
std::string shortened(const Json& value);

}  // namespace snug
