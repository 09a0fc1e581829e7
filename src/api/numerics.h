// Settles how numbers are computed with and kept, from options and the model's files.
#pragma once

#include "api/options.h"
#include "plan/lowering/compile.h"

namespace snug {

// Returns what options alone say.
Numerics numerics_of(const JobConfig& options);

// Settles how the base is kept, for a job whose numerics, table and sources are set, and how a model is written; adds
// notes of what is kept in fewer bits than it is stored in. Throws UserError for what does not go together.
void resolve_base(JobSpec& spec, const JobConfig& options);
// Adds a note of which matrices Muon and APOLLO update, and at what cost, to a job whose numerics and table are set.
void note_matrices(JobSpec& spec);

}  // namespace snug
