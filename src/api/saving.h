// Plans what a run writes besides what it offloads: checkpoints, and what it exports.
#pragma once

#include "api/job.h"
#include "train/rehearsal.h"

namespace snug {

// Returns the plan of saving. `steps` is that of the run; if it is not known, as many as needed are assumed.
SavingPlan saving_plan(const Planned& planned, const JobConfig& options, std::optional<int64_t> steps);

// Returns the bytes of it that lie in memory, with what the job writes as a whole, if --out is on tmpfs; 0 if it is on
// a disk. Throws UserError if they have no bound.
uint64_t saved_in_memory(const Planned& planned, const JobConfig& options);

}  // namespace snug
