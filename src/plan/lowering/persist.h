// Emits the programs that save what an interrupted run needs to go on, and that restore it.
#pragma once

#include <filesystem>
#include <map>

#include "plan/lowering/transfer.h"

namespace snug {

// Returns the output of a checkpoint: trainable weights to the last bit, and optimizer state. One file a rank holds
// what the rank owns; a tensor is a stretch of one array of one parameter.
Output state_output(const JobContext& job);

// Describes what the files of a checkpoint hold, whatever ranks wrote them.
struct SavedState {
  struct Stretch {
    Span span;  // of the parameter's values in the array
    TensorPlace place;
  };
  std::vector<std::filesystem::path> files;
  std::vector<uint64_t> file_bytes;
  std::map<std::string, std::vector<Stretch>> arrays;  // by "<parameter>.<array>", in order
};
// Reads the headers of a checkpoint's files. Throws UserError for a file that is missing, damaged in its header, or of
// another kind.
SavedState find_saved_state(const std::filesystem::path& directory);
// Returns the state as this rank alone would write it, for planning before there is one.
SavedState assumed_saved_state(const JobContext& job);
// Returns whether ranks restore what stands in others' files too, as many as they are: states of one run, and what
// trained norms of rows began with. Their checkpoint is then to be looked at by find_saved_state().
bool restores_of_others(const ParamTable& table, const Numerics& numerics);

// Emits the reading of saved state. Throws UserError if the files do not hold every element that this rank needs.
void lower_restore(const JobContext& job, ProgramId program, const SavedState& saved);

}  // namespace snug
