// Computes a reference's log-probabilities before the first step.
#pragma once

#include "train/session.h"
#include "train/step_objective.h"
#include "train/stream_source.h"

namespace snug {

// Scores the samples of a run of which the objective does not know the reference yet, with Task::Score, pass by pass as
// its steps have them: so the first step is scored by the products that train it. Returns how many
// passes that took. All ranks call it, and know as much before and after.
int64_t score_references(Session& session, StreamSource& source, StepObjective& objective);

}  // namespace snug
