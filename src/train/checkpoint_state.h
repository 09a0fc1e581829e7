// What stands in a checkpoint beside the tensors: its state.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fields.h"

namespace snug {

struct CheckpointState {
  int64_t step = 0;
  Fields fields{};  // what decides the results (plan/lowering/fingerprint.h, and of the data): resuming compares them
  uint64_t program_hash = 0;  // information
  std::optional<double> best_eval_loss{};
  int64_t best_step = 0;
};

constexpr uint64_t kMaxStateFile = 1 << 20;  // bytes

// Fields at their defaults are left out.
std::string write_state(const CheckpointState& state);
// UserError with `source` (the file's name) if it is not, to the byte, a state that was written, or if a version of
// snug wrote it that this one cannot go on from.
CheckpointState parse_state(std::string_view json, const std::string& source);

}  // namespace snug
