// What stands in a checkpoint beside the tensors: its state.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

struct CheckpointState {
  int64_t step = 0;
  uint64_t numerics_hash = 0;  // resuming checks it
  uint64_t data_order = 0;     //   and this: a hash of what decides which tokens each step sees
  uint64_t program_hash = 0;   // information
  std::optional<double> best_eval_loss;
  int64_t best_step = 0;
};

std::string write_state(const CheckpointState& state);
// UserError with `source` (the file's name) if it is not, to the byte, a state that was written.
CheckpointState parse_state(std::string_view json, const std::string& source);

}  // namespace snug
