// What a run that is resumed keeps of its own, and what it refuses to go on with.
#pragma once

#include "api/corpus.h"
#include "api/job.h"

namespace snug {

// Keeps the cut of a run that is resumed, unless another is named; on another number of ranks that is impossible.
void keep_cut_of_run(JobConfig& options);

// Keeps where replies end, which was decided when the run began and is written with what it trains.
void keep_ends_of_run(const JobConfig& options, Corpus& corpus);

// Returns saved state of which ranks restore what others saved: by another number of ranks, or by restores_of_others().
std::optional<SavedState> saved_by_others(const JobConfig& options, const JobSpec& spec);

// Returns the job. Refuses to go on with a run under other fields than its checkpoint has, before work is done in vain:
// UserError. `data` holds the fields of the data.
JobSpec job_of_run(const JobConfig& options, const Fields& data, const Heartbeat& heartbeat);

}  // namespace snug
