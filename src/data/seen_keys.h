// What is said of a file's records as a whole, a line for each kind of thing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace snug {

// What a record becomes.
struct Made {
  std::vector<Sample> samples;
  std::vector<std::string> ignored;  // keys
  std::vector<bool> occurs;          // of the fields that options name
  std::vector<bool> has_role;        // of the roles that options name
  bool has_mask = false;             // a message has one
  int64_t empty_replies = 0;         // that carry loss
  bool ended_again = false;          // it ended twice, or by another token than the template's
  bool begun_again = false;          // it began with BOS more than once
  LeftOut left_out;                  // by the chat template
};

// What the records of a file have in common.
class SeenKeys {
 public:
  explicit SeenKeys(const std::vector<NamedField>& named) : named_(named), occurs_(named.size()) {}

  void add(const Made& made);
  // Notes for keys that are passed over, for fields that options name and that the file's records have not, and for a
  // key that programs differ in.
  void say_of_keys(const std::string& path, const DataOptions& options) const;
  // Notes for what begins more than once, ends at once or more than once, and for what the chat template leaves out.
  void say_of_ends(const std::string& path, const DataOptions& options) const;

 private:
  const std::vector<NamedField>& named_;
  std::vector<bool> occurs_;
  int64_t masks_ = 0, empty_replies_ = 0, ended_again_ = 0, begun_again_ = 0;
  LeftOut left_out_ = {};
  std::map<std::string, int64_t> ignored_;
};

// Sets what is set in `more`, of as many.
void add_to(std::vector<bool>& all, const std::vector<bool>& more);

}  // namespace snug
