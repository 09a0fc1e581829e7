// One of a run's checkpoints in the place of an adapter or a model.
#pragma once

#include "cli/options.h"

namespace snug {

// Where --checkpoint names a checkpoint of the run that --adapter or --model names, or one of these is such a
// checkpoint's directory, puts an adapter or model with its weights in the option's place, and says on standard error
// which step it is of. It lies in the checkpoint's directory and is made there once: by the first process, where a
// launcher has started several. --model is the run's own where none is given.
void choose_checkpoint(Options& options);

}  // namespace snug
