// The persistent bytes of a job: weights, what completes them, and optimizer state, one run of bytes for each group of
// parameters, frozen and trainable apart.
#pragma once

#include "model/params.h"
#include "plan/arrangement.h"
#include "program/emitter.h"

namespace snug {

class Storage {
 public:
  // Adds the buffers to `set`. Without `states`, trainable parameters have their weights only (evaluation of an
  // adapter).
  Storage(ProgramSet& set, const ParamTable& table, const Numerics& numerics, bool states);

  // `count` joined parameters in the dtype they are stored in: one parameter has its own shape, several are one matrix
  // (or vector) of all their rows.
  Operand weight(ParamId first, int count = 1) const;
  // Of a split trainable parameter: the lower 16 bits.
  Operand low(ParamId id) const;
  Operand first_moment(ParamId id) const;
  Operand second_moment(ParamId id) const;

  bool split(ParamId id) const { return table_[id].trainable && numerics_.split_master(); }
  bool has_states() const { return states_; }

  // A dense buffer for one value of `dtype` for each trainable element of a group: gradients and accumulators.
  Operand group_tensor(ProgramSet& set, std::string name, int group, DType dtype, Role role, Life life) const;
  // A parameter's part (or that of joined ones) of such a buffer.
  Operand part(const Operand& group_tensor, ParamId first, int count = 1) const;
  int64_t trainable_elements(int group) const { return groups_[static_cast<size_t>(group)].trainable.elements; }

 private:
  struct Segment {
    int64_t elements = 0;
    Operand weights, low, first_moments, second_moments;
  };
  struct Group {
    Segment frozen, trainable;
  };
  const Segment& segment(ParamId id) const;
  Operand view(const Operand& whole, ParamId first, int count) const;

  const ParamTable& table_;
  Numerics numerics_;
  bool states_;
  std::vector<Group> groups_;
  std::vector<int64_t> offset_;  // by ParamId: elements from the start of its segment
};

}  // namespace snug
