// The optimizer's program: norm, clipping factor, AdamW.
#pragma once

#include "plan/lower.h"

namespace snug {

// Partial sums of squares, so that whoever finds a norm that is not finite can name the parameter.
struct NormPart {
  ParamId param = kNoParam;
  int64_t begin = 0, end = 0;  // elements of `partials`
};
struct UpdateProgram {
  Operand partials;  // [units] fp32, in parameter order
  std::vector<NormPart> parts;
};

// Consumes `step`; hands loss and norm to the host (HostJob::TakeMetrics). Where either is not finite, nothing changes.
UpdateProgram lower_update(const JobContext& job, ProgramId program, const StepBuffers& step);

}  // namespace snug
