// Programs that begin and end a run: loading, saving what is needed to go on, restoring it, and writing what others
// load.
#pragma once

#include <filesystem>
#include <map>
#include <variant>

#include "plan/transfer.h"

namespace snug {

// Where a parameter's first value comes from.
using ParamSource = std::variant<TensorPlace, RandomFill>;

// Everything that training or evaluation finds in place: parameters by their sources (by ParamId), optimizer state
// zero, the table of rotary angles. Each rank reads its part; who shares an array gathers it.
void lower_load(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
                const std::vector<uint64_t>& file_bytes);

// What an interrupted run needs to go on: trainable weights to the last bit, and optimizer state. One file a rank holds
// what the rank owns; a tensor is a stretch of one array of one run of parameters.
Output state_output(const JobContext& job);

// What the files of a checkpoint hold, whatever ranks wrote them.
struct SavedState {
  struct Stretch {
    Span span;  // values of the array over its run
    TensorPlace place;
  };
  std::vector<std::filesystem::path> files;
  std::vector<uint64_t> file_bytes;
  std::map<std::string, std::vector<Stretch>> arrays;  // by "<first parameter of a run>.<array>", in order
};
// UserError for a file that is missing, damaged in its header, or of another kind.
SavedState find_saved_state(const std::filesystem::path& directory);
// As this rank alone writes it: for planning, before there is one.
SavedState assumed_saved_state(const JobContext& job);

// UserError if the files do not hold every element that this rank needs.
void lower_restore(const JobContext& job, ProgramId program, const SavedState& saved);

// What others load: adapters in fp32 (one file), or a whole model in `dtype`, in files of at most `max_bytes`.
Output adapter_output(const JobContext& job);
Output model_output(const JobContext& job, DType dtype, uint64_t max_bytes);

// Gathers group after group; rank 0 writes.
void lower_export(const JobContext& job, ProgramId program, Output output);

// Adds every adapter to the weights it adapts: W + scale B A, in fp32, rounded once to the format of W. One rank.
void lower_merge(const JobContext& job, ProgramId program);

}  // namespace snug
