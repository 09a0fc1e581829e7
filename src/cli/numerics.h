// How numbers are computed with and kept: what options say, and what the model's files have.
#pragma once

#include "cli/options.h"
#include "plan/lowering/compile.h"

namespace snug {

// What options alone say.
Numerics numerics_of(const Options& options);

// How the base is kept, of a job whose numerics, table and sources are there, and how a model is written; with notes of
// what is kept in fewer bits than it is stored in. UserError for what does not go together.
void resolve_base(JobSpec& spec, const Options& options);

}  // namespace snug
