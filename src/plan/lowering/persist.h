// Programs that keep what an interrupted run needs to go on, and bring it back.
#pragma once

#include <filesystem>
#include <map>

#include "plan/lowering/transfer.h"

namespace snug {

// Trainable weights to the last bit, and optimizer state. One file a rank holds what the rank owns; a tensor is a
// stretch of one array of one parameter.
Output state_output(const JobContext& job);

// What the files of a checkpoint hold, whatever ranks wrote them.
struct SavedState {
  struct Stretch {
    Span span;  // of the parameter's values in the array
    TensorPlace place;
  };
  std::vector<std::filesystem::path> files;
  std::vector<uint64_t> file_bytes;
  std::map<std::string, std::vector<Stretch>> arrays;  // by "<parameter>.<array>", in order
};
// UserError for a file that is missing, damaged in its header, or of another kind.
SavedState find_saved_state(const std::filesystem::path& directory);
// As this rank alone writes it: for planning, before there is one.
SavedState assumed_saved_state(const JobContext& job);

// UserError if the files do not hold every element that this rank needs.
void lower_restore(const JobContext& job, ProgramId program, const SavedState& saved);

}  // namespace snug
