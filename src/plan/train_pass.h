// One pass of a training step: forward, backward, and what becomes of its gradients.
#pragma once

#include "plan/job.h"

namespace snug {

// What passes leave to the update.
struct StepBuffers {
  Operand loss;                       // [1] fp32: this rank's, summed over the passes
  std::vector<Operand> gradients;     // by group, in the gradient dtype: this rank's part of the whole step's
  std::vector<Operand> accumulators;  // by group, where a step has several passes; may be `gradients` themselves
};
StepBuffers make_step_buffers(const JobContext& job, bool several_passes);

enum class PassPosition : uint8_t { Only, First, Middle, Last };

// Forward and backward of one pass: reads a batch from the host, leaves loss and gradients in `step`.
void lower_train_pass(const JobContext& job, ProgramId program, const Cut& cut, PassPosition position,
                      const StepBuffers& step);

}  // namespace snug
