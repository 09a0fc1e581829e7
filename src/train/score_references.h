// Computes a reference's log-probabilities before the first step.
#pragma once

#include "train/session.h"
#include "train/step_objective.h"
#include "train/stream_source.h"

namespace snug {

struct ReferenceOptions {
  std::function<bool()> interrupted = [] { return false; };  // asked after each step's replies; any rank's yes ends it
  std::function<void()> keep = [] {};                        // rank 0 calls it now and then, with what is known by then
};

struct ScoredPasses {
  int64_t passes = 0;
  bool interrupted = false;
};

// Scores the samples of a run of which the objective does not know the reference yet, with Task::Score, pass by pass as
// its steps have them: so the first step is scored by the products that train it. Returns how many passes that took,
// and whether it was interrupted before all is known. All ranks call it, and know as much before and after.
ScoredPasses score_references(Session& session, StreamSource& source, StepObjective& objective,
                              const ReferenceOptions& options = {});

}  // namespace snug
