// Runs jobs that use a model as it is: evaluation, generation, merging.
#pragma once

#include "api/job.h"

namespace snug {

// Plans such a job for here and now, with the ranks of the options, the launcher or the machine; only where weights lie
// is open. Without --ranks a model that one GPU holds is generated with on one, as more would be no faster. Throws
// CapacityError if nothing fits. `says` is whether the first process prints the notes of the job.
Planned plan_use(JobSpec spec, const JobConfig& options, Comm* launched, bool says = true);

// Runs `work` on every rank, with a session that has loaded the model. Rank 0 first says on standard error how it is
// held, unless one device has all of it.
// Each rank calls `before`, if it is given, before it has a session.
void use_model(const Planned& planned, const JobConfig& options, std::unique_ptr<Comm> launched,
               const std::function<void(Session&)>& work,
               const std::function<void(int rank, int place, Comm* comm)>& before = {});

}  // namespace snug
