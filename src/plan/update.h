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

// Consumes `step`; hands loss and norm to the host (HostJob::TakeMetrics). Where either is not finite, nothing changes.
UpdateProgram lower_update(const JobContext& job, ProgramId program, const StepBuffers& step);

}  // namespace snug
