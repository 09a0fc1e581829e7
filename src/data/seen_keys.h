// Reports on a file's records as a whole, with a line for each kind of thing.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace snug {

// Holds what a record becomes.
struct Made {
  std::vector<Sample> samples;
  bool is_empty = false;             // a field that it needs is null, and it is left out
  std::vector<std::string> ignored;  // keys
  std::vector<bool> occurs;          // by field that options name
  std::vector<bool> has_role;        // by role that options name
  bool has_mask = false;             // a message has a 'mask'
  int64_t empty_replies = 0;         // replies that carry loss
  bool ended_again = false;          // it ended twice, or by another token than the template's
  bool begun_again = false;          // it began with BOS more than once
  LeftOut left_out;                  // by the chat template
  std::vector<Settled> settled;      // of preferences
  bool raw = false;                  // it is texts that no chat template renders, behind a prompt
};

// Collects what the records of a file have in common.
class SeenKeys {
 public:
  explicit SeenKeys(const std::vector<NamedField>& named) : named_(named), occurs_(named.size()) {}

  void add(const Made& made);
  // Notes keys that are passed over, fields that options name and that no record of the file has, and a key on whose
  // meaning programs differ.
  void say_of_keys(const std::string& path, const DataOptions& options) const;
  // Notes what begins more than once, ends at once or more than once, and what the chat template leaves out.
  void say_of_ends(const std::string& path, const DataOptions& options) const;
  // Notes what was settled by looking at preferences.
  void say_of_answers(const std::string& path, const DataOptions& options) const;

 private:
  const std::vector<NamedField>& named_;
  std::vector<bool> occurs_;
  int64_t masks_ = 0, empty_replies_ = 0, ended_again_ = 0, begun_again_ = 0;
  LeftOut left_out_ = {};
  std::array<int64_t, kSettled> settled_ = {};  // records
  int64_t raw_ = 0;
  std::map<std::string, int64_t> ignored_;
};

// Sets the elements that are set in `more`, which has as many.
void add_to(std::vector<bool>& all, const std::vector<bool>& more);

}  // namespace snug
