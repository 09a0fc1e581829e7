// Allocates the persistent bytes of a job on one rank: weights, the bits that complete them, and optimizer state, as
// arrays over the segments of plan/layout/layout.h.
#pragma once

#include <optional>

#include "plan/layout/layout.h"
#include "plan/spec/arrangement.h"
#include "program/emitter.h"

namespace snug {

// Holds one array over a segment, as far as this rank keeps it.
struct ShardedArray {
  Operand values;                // a vector of span.count() / block values, in any space
  Span span;                     // of the segment
  int64_t block = 1;             // elements of the segment for each value; divides units
  std::optional<Ranks> sharers;  // ranks that hold this span, each owning a part of it; nothing: it is this rank's part
  // Names the run that the array is of; nothing: it is of the whole segment. Every rank holds all of what is of one
  // run, and keeps up the part that it updates.
  std::optional<Span> only{};
  bool exists() const { return span.count() > 0; }
  bool of_run(const Span& run) const { return !only || *only == run; }
};

// Returns elements of a vector that begins at element `start` of its segment.
Operand slice(const Operand& array, int64_t start, const Span& span);
// Returns the values for elements of a segment; the last block may be short.
Operand slice(const ShardedArray& sharded, const Span& span);

struct Array {
  std::string name;  // "low", "first_moment", "codes"
  ShardedArray sharded;
};

// Holds what an optimizer keeps of a parameter as a matrix, in fp32: every rank keeps up all of it.
struct MatrixState {
  std::string name;  // "row_means"
  Shape shape;
  Operand values;  // a vector in any space; what is not on the device has room for whole units
  Operand used() const { return elements(values, 0, shape.count()); }
};

class Storage {
 public:
  // Adds the buffers to `set`. Without `moments`, trainable parameters have their weights only (evaluation of an
  // adapter).
  Storage(ProgramSet& set, const ParamTable& table, const Layout& layout, const Numerics& numerics,
          const Strategy& strategy, bool moments);

  const Layout& layout() const { return layout_; }

  // Returns what products need of a segment: its weights, or their codes and the scales that are sharded with them.
  const std::vector<Array>& weights(int group, SegmentKind kind) const {
    return weights_[static_cast<size_t>(group)][static_cast<size_t>(kind)];
  }
  // Returns the weights themselves, or their codes.
  const ShardedArray& values(int group, SegmentKind kind) const { return weights(group, kind)[0].sharded; }
  // Says what this rank updates of a trained segment, and who else does: where its states would lie. It has no values.
  const ShardedArray& updated(int group) const { return updated_[static_cast<size_t>(group)]; }
  // Returns what the optimizer and checkpoints keep of a trained segment, in a fixed order: low bits first. Some may be
  // of one run alone, and there may be none.
  const std::vector<Array>& states(int group) const { return states_[0][static_cast<size_t>(group)]; }
  const std::vector<MatrixState>& matrix_states(ParamId id) const { return matrix_states_[static_cast<size_t>(id)]; }
  // Returns where y is kept while weights hold the average (plan/lowering/average.h): the weights, and their low bits.
  // Empty if the optimizer makes no average.
  const std::vector<Array>& training_points(int group) const { return training_points_[static_cast<size_t>(group)]; }
  // Returns where a step's update writes the states: in place or, for a group that speculates, in its back buffer.
  const std::vector<Array>& next_states(int group) const {
    return speculates(group) ? states_[1][static_cast<size_t>(group)] : states(group);
  }
  bool speculates(int group) const { return !states_[1][static_cast<size_t>(group)].empty(); }
  // Makes the back buffer current from now on, and the front one free.
  void swap_buffers();

  // Returns the fp32 numbers of a quantized segment that every rank has: a scale for each row, or an offset of scales
  // for each parameter (Nf4). Empty where there are none.
  const Operand& table(int group) const { return tables_[static_cast<size_t>(group)]; }
  Span table_span(ParamId id) const { return table_spans_[static_cast<size_t>(id)]; }
  // Returns a parameter that is a constant, in fp32; every rank has all of it.
  Operand constant(ParamId id) const;
  // Returns the operands that Dequantize reads for a quantized parameter, out of arrays over the whole segment.
  std::vector<Operand> quantized(std::span<const Operand> whole, ParamId id) const;

  // Returns whether a group has parameters that are updated as matrices, from the whole of their gradients, and whether
  // a parameter is one.
  bool updates_matrices(int group) const { return matrix_groups_[static_cast<size_t>(group)]; }
  bool updated_as_matrix(ParamId id) const { return matrices_[static_cast<size_t>(id)]; }

  // Returns whether a parameter's weights are split; their low bits are then the first state.
  bool split(ParamId id) const { return table_[id].trainable && numerics_.split_master(); }
  const ShardedArray& low(int group) const { return states(group)[0].sharded; }

  // Returns the shape of `count` joined parameters as one matrix (or vector).
  Shape joined_shape(ParamId first, int count) const;
  // Returns the parameters' values in an array over the whole segment, as one matrix (or vector).
  Operand view(const Operand& whole, ParamId first, int count = 1) const;

 private:
  class ArrayAllocator;
  std::vector<Array> allocate_codes(const ArrayAllocator& allocator) const;
  std::vector<Array> allocate_states(const ArrayAllocator& allocator, int group, bool moments) const;
  std::vector<MatrixState> allocate_matrix_states(const ArrayAllocator& allocator, ParamId id) const;
  std::vector<Array> allocate_points(const ArrayAllocator& allocator, const Strategy& strategy) const;
  int64_t number_table(int group);
  int64_t number_constants(int group);

  const ParamTable& table_;
  const Layout& layout_;
  Numerics numerics_;
  std::vector<std::array<std::vector<Array>, kSegmentKinds.size()>> weights_;  // by group, SegmentKind
  std::array<std::vector<std::vector<Array>>, 2> states_;                      // by buffer, group
  std::vector<ShardedArray> updated_;                                          // by group
  std::vector<std::vector<MatrixState>> matrix_states_;                        // by ParamId
  std::vector<std::vector<Array>> training_points_;                            // by group
  std::vector<Operand> tables_;                                                // by group
  std::vector<Span> table_spans_;                                              // by ParamId
  std::vector<Operand> constants_;                                             // by group
  std::vector<Span> constant_spans_;                                           // by ParamId
  std::vector<bool> matrices_, matrix_groups_;                                 // by ParamId, by group
};

}  // namespace snug
