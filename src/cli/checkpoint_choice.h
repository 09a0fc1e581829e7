// One of a run's checkpoints in the place of an adapter or a model.
#pragma once

#include <string>

#include "cli/cache.h"
#include "cli/options.h"

namespace snug {

// Where --checkpoint names a checkpoint of the run that --adapter or --model names, or one of these is such a
// checkpoint's directory, puts an adapter or model with its weights in the option's place, and says on standard error
// which step it is of. It is made once, in the cache, under a hash of all that it is made of, and stands there as long
// as the lock is held. --model is the run's own where none is given. DeviceError where the run, which goes on, removes
// the checkpoint meanwhile; of `last` the newer one is taken.
FileLock choose_checkpoint(Options& options);

// Whether a path is the directory of a run's checkpoint.
bool is_checkpoint(const std::string& path);

}  // namespace snug
