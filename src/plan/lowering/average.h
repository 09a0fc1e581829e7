// Emits what comes before and after programs that use the average of schedule-free training.
//
// Such a run takes gradients at y, and evaluates, saves and exports the average x. Weights hold y while it trains. Both
// are to be exact where training goes on, and x is not what y is made of, so y is kept aside while weights hold x:
// then there are no gradients, whose place it takes.
#pragma once

#include "plan/lowering/job.h"

namespace snug {

// Emits the keeping of y (Storage::training_points()), and its replacement by x in the weights.
void lower_to_average(const JobContext& job, ProgramId program);
// Emits the return of y to the weights.
void lower_from_average(const JobContext& job, ProgramId program);

}  // namespace snug
