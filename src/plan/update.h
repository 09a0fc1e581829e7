// The optimizer's program: norm, clipping factor, AdamW.
#pragma once

#include "plan/train_pass.h"

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
};

// AdamW on what this rank updates, group by group, tile by tile wherever state and weights live; then everyone has the
// new weights. Reads gradients and clip factor of `step`; where that says not finite, nothing changes.
class GroupUpdates {
 public:
  GroupUpdates(const JobContext& job, Emitter& emitter, const StepBuffers& step)
      : job_(job), emitter_(emitter), step_(step) {}
  // Nothing where the group has nothing trained.
  void emit(int group);

 private:
  Operand gradient_to_update(int group, const Held& updated);
  // A stretch of a run, and what its update works on, once that was asked for.
  struct Tile {
    const Layout::Run* run;
    Span span;
    std::vector<Operand> operands;
    std::vector<std::pair<Operand, Operand>> travelled;  // value, where it is stored
  };
  void fetch_tile(int group, Tile& tile, const Operand& gradient, int64_t start);
  void update_tile(const Tile& tile);

  const JobContext& job_;
  Emitter& emitter_;
  const StepBuffers& step_;
};

// Norm and clip factor of what `step` holds; hands them and the loss to the host (HostJob::TakeMetrics). Updates all
// groups, unless that is deferred to the next step.
UpdateProgram lower_update(const JobContext& job, ProgramId program, const StepBuffers& step);
// The deferred update of all groups, for who needs the weights before the next step.
void lower_flush(const JobContext& job, ProgramId program, const StepBuffers& step);

}  // namespace snug
