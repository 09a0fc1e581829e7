// Emits the optimizer's program: norm, clip factor, AdamW or another.
#pragma once

#include <optional>

#include "plan/lowering/train_pass.h"

namespace snug {

// Says where a step's partial sums of squares are, so that the parameter can be named whose norm is not finite.
struct UpdateProgram {
  Operand partials;  // [ranks, units a rank] fp32, of all ranks in the order of their parts
  // Holds elements [begin, end) of `partials`, one for each unit.
  struct Units {
    ParamId param = kNoParam;  // the first of a joined run
    int64_t begin = 0, end = 0;
  };
  std::vector<Units> units;
  bool in_backward = false;  // weights are updated before the norm is known
};

// Elements that one op updates, wherever their state lives.
inline constexpr int64_t kUpdateTile = 8 << 20;

// Gathers a group's weights where this rank has changed only a part of those that it holds.
void allgather_updated(const JobContext& job, Emitter& emitter, int group);

// Returns the number of partial sums of squares of this rank's parts of all gradients: one for each unit, group after
// group.
int64_t norm_units(const JobContext& job);

// Emits the optimizer's ops on what this rank updates, group by group, tile by tile, wherever state and weights live;
// then all ranks gather the new weights. It reads gradients and clip factor of `step` and changes nothing where that
// says not finite. Nothing is emitted for a group without trained parameters.
class GroupUpdates {
 public:
  GroupUpdates(const JobContext& job, Emitter& emitter, const StepBuffers& step);

  // Updates all groups up to this one that were not updated early. Ranks gather what matrices are updated from, and
  // each works out the directions of those of which it updates a part.
  void update_through(int group);
  // Queues the updates of groups whose state is offloaded, so that advance() may emit them ahead of update_through().
  void enqueue();

  // Emits what update_early() reads: a clip factor of 1, and empty sums for the norm. It must be called before the
  // first update_early() of a program that has any.
  void prepare();
  // Updates a group when its gradient is complete, before there is a clip factor, as if that were 1. For a group that
  // speculates the replaced weights are kept. Where the group's state is offloaded the update is queued for advance();
  // finish() emits the rest of all queued updates.
  void update_early(int group);
  void finish();
  // Updates a group again, with the clip factor now known, from the weights that were kept.
  void reapply(int group);

  // Return the number of tiles that are queued, and that number with the tiles of groups that will be updated early,
  // have offloaded state and have not begun.
  int64_t waiting() const { return std::ssize(waiting_); }
  int64_t remaining() const { return remaining_; }
  void advance(int64_t tiles);

 private:
  enum class Variant : uint8_t { Exact, Unclipped, Speculative, Reapply };
  // Says what a tile's op does: all of an update, or of a matrix's what comes before and after its direction is known.
  enum class Stage : uint8_t { Whole, Momentum, Descend };
  // Holds some elements of a run and, once they were fetched, the operands of their update.
  struct Tile {
    int group;
    Variant variant;
    Lane lane;  // of its update; a queued tile must not hold up the compute lane until its state is there
    const Layout::Run* run;
    Span span;
    Operand gradient;  // of all that this rank updates of the group, in any space; Descend: the direction instead
    Stage stage = Stage::Whole;
    Operand direction{};  // Momentum: of all that this rank updates
    std::vector<Operand> operands{};
    std::vector<std::pair<Operand, Operand>> writebacks{};  // value, where it is to be stored
  };
  const ShardedArray& updated(int group) const { return job_.storage.updated(group); }
  bool stays(int group) const;  // whether its state stays on the device
  Operand gradient_to_update(int group);
  std::vector<Tile> tiles_of(int group, Variant variant, Lane lane, const Operand& gradient,
                             Stage stage = Stage::Whole) const;
  std::vector<Tile> tiles_to_update(int group, Variant variant, Lane lane);
  Operand orthogonalized(int group, Variant variant, Lane lane, const Operand& gradient);
  Operand scaled(int group, Variant variant, const Operand& gradient);
  Operand whole_gradient(int group, const Operand& gradient);
  std::pair<std::vector<ParamId>, std::vector<Shape>> matrices_of(int group) const;
  const Operand& scalars_of(Variant variant) const;
  bool has_part(const Tile& tile, const Array& state) const;
  void emit_tiles(std::vector<Tile> tiles);
  void fetch_tile(Tile& tile);
  Operand fetch_weights(const Tile& tile, const Span& span);
  void update_tile(const Tile& tile);
  void update_whole(const Tile& tile, double decay);
  AdamW adamw_of(const Tile& tile) const;

  const JobContext& job_;
  Emitter& emitter_;
  const StepBuffers& step_;
  int next_ = 0;              // group of update_through()
  std::vector<bool> queued_;  // by group
  std::vector<int> begun_;    // groups of update_early() whose state is offloaded
  std::vector<Tile> waiting_;
  int64_t remaining_ = 0;
  Operand unclipped_;
};

// Emits norm and clip factor of what `step` holds and hands them and the loss to the host (HostJob::TakeMetrics).
// Updates all groups that were not updated early, unless that is deferred to the next step.
UpdateProgram lower_update(const JobContext& job, ProgramId program, const StepBuffers& step);
// Emits the deferred update of those groups, for callers that need the weights before the next step.
void lower_flush(const JobContext& job, ProgramId program, const StepBuffers& step);
// Emits the update of all groups that speculate once more, for a step in which clipping changes it.
void lower_reapply(const JobContext& job, ProgramId program, const StepBuffers& step);

}  // namespace snug
