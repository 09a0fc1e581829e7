// Counts the records of a file that have a null field where their shape needs a value, as empty rows of tables do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/json.h"

namespace snug {

// Is thrown of a field that is null where its record needs a value.
struct NullFieldError : UserError {
  using UserError::UserError;
};
// Throws it.
[[noreturn]] void refuse_null(const JsonObject& object, std::string_view key);

// Returns whether an object has no value but null.
bool is_all_null(const Json& object);

class NullCounter {
 public:
  explicit NullCounter(std::filesystem::path file) : file_(std::move(file)) {}

  // Adds a record, by its place for messages, and whether all its fields are null.
  void add(const std::string& place, bool all_null);
  int64_t count() const { return count_; }
  // Throws NullFieldError: `first`, the message on the first such record, with how many there are and where the first
  // ones are, and whether they have any value at all.
  [[noreturn]] void refuse(const std::string& first) const;
  // Returns the line that says of so many records which are left out.
  std::string line(int64_t records) const;

 private:
  std::string places() const;

  std::filesystem::path file_;
  int64_t count_ = 0;
  bool all_null_ = true;
  std::vector<std::string> named_;
};

}  // namespace snug
