// Says at once which records of a file have a null field where their shape needs a value, as empty rows of tables do.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/records.h"
#include "data/sample_maker.h"

namespace snug {

// Is thrown of a field that is null where its record needs a value.
struct NullFieldError : UserError {
  using UserError::UserError;
};
// Throws it.
[[noreturn]] void refuse_null(const JsonObject& object, std::string_view key);

// Refers to its arguments, which must outlive it.
class NullCounter {
 public:
  NullCounter(const std::filesystem::path& file, const SampleMaker& maker) : file_(file), maker_(maker) {}

  // Adds the next records of the file.
  void count(std::span<const Record> records);
  // Throws NullFieldError: `first`, the message on the first such record, with how many there are and where the first
  // ones are, and, where these are rows without anything in them, a command that leaves them out.
  [[noreturn]] void refuse(const std::string& first) const;

 private:
  std::string place_in_file(const std::string& place) const;

  const std::filesystem::path& file_;
  const SampleMaker& maker_;
  size_t count_ = 0;
  bool all_empty_ = true;
  std::vector<std::string> named_;
};

}  // namespace snug
