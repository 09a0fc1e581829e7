// What a run writes beside what it offloads: checkpoints, and what it exports.
#pragma once

#include "cli/job.h"
#include "train/rehearsal.h"

namespace snug {

// `steps`: of the run; if that is not known, as many as there need be.
SavingPlan saving_plan(const Planned& planned, const Options& options, std::optional<int64_t> steps);

// What of it lies in memory, with what the job writes as a whole, as --out is on tmpfs; 0 where it is on a disk.
// UserError where that has no bound.
uint64_t saved_in_memory(const Planned& planned, const Options& options);

}  // namespace snug
