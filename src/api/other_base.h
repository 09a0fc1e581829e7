// Compares the model of a job with the one on which its adapter was trained.
#pragma once

#include "api/job.h"

namespace snug {

// Adds a line if the adapter was trained on another model, or on other weights, than these: as its snug.json tells or,
// without one, as PEFT names the base.
void note_other_base(JobSpec& spec, const JobConfig& options, const SourceRequest& request);

}  // namespace snug
