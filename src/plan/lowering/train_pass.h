// Emits the passes of a training step: forward, backward, and what becomes of their gradients.
#pragma once

#include "plan/lowering/job.h"

namespace snug {

// Holds what passes leave to the update.
struct StepBuffers {
  Operand loss;                       // [1] fp32: this rank's loss, summed over the passes
  Operand scalars;                    // StepScalars, as ClipFactor writes them
  std::vector<Operand> gradients;     // by group, in the gradient dtype: this rank's part of the whole step's
  std::vector<Operand> accumulators;  // by group, where passes are programs of their own; may be `gradients` themselves
  std::vector<ShardedArray> replaced;  // by group that speculates: the weights before their update, on the host
  Operand partials;  // where all groups are updated in the backward: this rank's sums of squares (norm_units)
};
StepBuffers make_step_buffers(const JobContext& job, const Cut& cut);

// Says where a pass stands in its step.
enum class PassPosition : uint8_t { Only, First, Middle, Last };
PassPosition position_of(int64_t pass, int64_t passes);

// Emits forward and backward of passes that follow each other in the step, of a shape of the cut: each reads a batch
// from the host and adds to loss and gradients in `step`. Several passes go through each layer together, one after the
// other, so that its weights come once for all of them and its sums need no room beyond it. With a pending update each
// group is updated first, from what the step before left in `step`; those ops have the number of one more pass
// (Op::pass), whose scalars are the step's before. Groups that JobContext::updates_early() are updated as soon as their
// gradients are complete.
void lower_passes(const JobContext& job, ProgramId program, const Cut& cut, int shape,
                  const std::vector<PassPosition>& positions, const StepBuffers& step, bool pending_update);

}  // namespace snug
