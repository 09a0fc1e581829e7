// Programs that move parameters between files and their storage, through planned staging: no file is ever held as a
// whole.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "format/safetensors.h"
#include "plan/lower.h"

namespace snug {

// Where a tensor's elements lie, one after the other.
struct TensorPlace {
  int64_t file = 0;     // index into the files of the program
  uint64_t offset = 0;  // bytes from the file's start
  DType dtype = DType::F32;
};

// A parameter, or what completes it, and its place in a file. A file's fp32 may stand for a split pair (`low` given).
struct Transfer {
  Operand stored;
  std::optional<Operand> low;
  TensorPlace place;
};

// Files to be written, whole, by a program.
struct OutputFiles {
  std::vector<std::string> names;  // within their directory
  std::vector<SafetensorsLayout> layouts;
  std::string index_json;  // for model.safetensors.index.json; empty if one file holds all
};

// Reads ranges of the files (HostJob-free: ReadFile ops name the file by index), converts them and writes them to their
// storage. `file_bytes`: the size of each file, as range ends are clipped to it.
void lower_reads(Emitter& e, std::vector<Transfer> transfers, const std::vector<uint64_t>& file_bytes);

// Writes the files from their first byte to their last: headers, then tensors as `transfers` (which cover the files'
// data) give them.
void lower_writes(Emitter& e, std::vector<Transfer> transfers, const OutputFiles& files);

// Where a parameter's first value comes from.
using ParamSource = std::variant<TensorPlace, RandomFill>;

// Everything that training or evaluation finds in place: parameters by their sources (by ParamId), optimizer state
// zero, the table of rotary angles.
void lower_load(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
                const std::vector<uint64_t>& file_bytes);

// What an interrupted run needs to go on: trainable weights to the last bit, and optimizer state; one file.
struct StateFiles {
  OutputFiles files;
  std::vector<Transfer> transfers;
};
StateFiles state_files(const JobContext& job);

// What others load: adapters in fp32 (one file), or a whole model in `dtype`, in files of at most `max_bytes`.
StateFiles adapter_files(const JobContext& job);
StateFiles model_files(const JobContext& job, DType dtype, uint64_t max_bytes);

// Adds every adapter to the weights it adapts: W + scale B A, in fp32, rounded once to the format of W.
void lower_merge(const JobContext& job, ProgramId program);

}  // namespace snug
