// The optimizer's program: norm, clipping factor, AdamW.
#pragma once

#include <optional>

#include "plan/lowering/train_pass.h"

namespace snug {

// Where a step's partial sums of squares are, so that whoever finds a norm that is not finite can name the parameter.
struct UpdateProgram {
  Operand partials;  // [ranks, units a rank] fp32, of all ranks in the order of their parts
  // Elements [begin, end) of `partials`, one for each unit.
  struct Units {
    ParamId param = kNoParam;  // the first of a joined run
    int64_t begin = 0, end = 0;
  };
  std::vector<Units> units;
  bool in_backward = false;  // weights are updated before anyone knows
};

// How many partial sums of squares there are of this rank's parts of all gradients: one for each unit, group after
// group.
int64_t norm_units(const JobContext& job);

// AdamW on what this rank updates, group by group, tile by tile wherever state and weights live; then everyone has the
// new weights. Reads gradients and clip factor of `step`; where that says not finite, nothing changes. Nothing is
// emitted for a group with nothing trained.
class GroupUpdates {
 public:
  GroupUpdates(const JobContext& job, Emitter& emitter, const StepBuffers& step);

  // Updates all groups up to this one that were not updated early.
  void update_through(int group);
  // Lets advance() do, before update_through() comes to them, what it may of groups whose state is offloaded.
  void enqueue();

  // What update_early() reads, a clip factor of 1, and empty sums for the norm: before the first of them, in a program
  // that has any.
  void prepare();
  // Updates a group when its gradient is complete, before there is a clip factor, as if that were 1. Of a group that
  // speculates the weights that this replaces are kept. Where its state is offloaded the update is queued for
  // advance(); finish() emits what is left of all of them.
  void update_early(int group);
  void finish();
  // Updates a group again with the clip factor that there is now, from the weights that were kept.
  void reapply(int group);

  // Returns how many tiles are queued; and how many with those of groups that are to be updated early, whose state is
  // offloaded, and that have not begun.
  int64_t waiting() const { return std::ssize(waiting_); }
  int64_t remaining() const { return remaining_; }
  void advance(int64_t tiles);

 private:
  enum class Variant : uint8_t { Exact, Unclipped, Speculative, Reapply };
  // Some elements of a run, and what their update works on, once that was asked for.
  struct Tile {
    int group;
    Variant variant;
    Lane lane;  // of its update: in a queue not the one that computes, which it would hold up until its state is there
    const Layout::Run* run;
    Span span;
    Operand gradient;  // of all that this rank updates of the group, wherever it is
    std::vector<Operand> operands{};
    std::vector<std::pair<Operand, Operand>> writebacks{};  // value, where it is to be stored
  };
  const ShardedArray& updated(int group) const { return job_.storage.states(group).back().sharded; }
  bool stays(int group) const;  // its state, on the device
  Operand gradient_to_update(int group);
  std::vector<Tile> tiles_of(int group, Variant variant, Lane lane, const Operand& gradient) const;
  void emit_tiles(std::vector<Tile> tiles);
  void fetch_tile(Tile& tile);
  Operand fetch_weights(const Tile& tile, const Span& span);
  void update_tile(const Tile& tile);
  void allgather_weights(int group);

  const JobContext& job_;
  Emitter& emitter_;
  const StepBuffers& step_;
  int next_ = 0;              // group of update_through()
  std::vector<bool> queued_;  // by group
  std::vector<int> begun_;    // groups of update_early() whose state waits elsewhere
  std::vector<Tile> waiting_;
  int64_t remaining_ = 0;
  Operand unclipped_;
};

// Norm and clip factor of what `step` holds; hands them and the loss to the host (HostJob::TakeMetrics). Updates all
// groups that were not updated early, unless that is deferred to the next step.
UpdateProgram lower_update(const JobContext& job, ProgramId program, const StepBuffers& step);
// The deferred update of those groups, for who needs the weights before the next step.
void lower_flush(const JobContext& job, ProgramId program, const StepBuffers& step);
// The update of all groups that speculate, where clipping changes it.
void lower_reapply(const JobContext& job, ProgramId program, const StepBuffers& step);

}  // namespace snug
