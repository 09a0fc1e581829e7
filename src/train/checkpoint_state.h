// Holds what stands in a checkpoint beside the tensors: its state.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fields.h"
#include "train/schedule.h"

namespace snug {

struct CheckpointState {
  int64_t step = 0;
  Fields fields{};  // what decides the results (plan/lowering/fingerprint.h, and the data's): resuming compares them
  uint64_t program_hash = 0;               // for readers only
  std::optional<double> best_eval_loss{};  // or whatever best_metric names
  int64_t best_step = 0;
  std::string best_metric = "eval_loss";
  int64_t evaluations_since_best = 0;
  AverageWeights average{};  // of schedule-free training
};

constexpr uint64_t kMaxStateFile = 1 << 20;  // bytes

// Returns the state as JSON. Fields at their defaults are left out.
std::string write_state(const CheckpointState& state);
// Reads a state. Throws UserError with `source` (the file's name) if it is not, to the byte, a state that was written,
// or if a version of snug wrote it from which this one cannot go on.
CheckpointState parse_state(std::string_view json, const std::string& source);

}  // namespace snug
