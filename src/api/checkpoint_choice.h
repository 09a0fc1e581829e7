// Puts one of a run's checkpoints in the place of an adapter or a model.
#pragma once

#include <string>

#include "api/cache.h"
#include "api/options.h"

namespace snug {

// If --checkpoint names a checkpoint of the run that --adapter or --model names, or one of these is such a checkpoint's
// directory, puts an adapter or model with its weights in the option's place, and says on standard error of which step
// it is. It is made once, in the cache, under a hash of all that it is made of, and stays there as long as the lock is
// held. --model is the run's own if none is given. Throws DeviceError if the run, which goes on, removes the checkpoint
// meanwhile; for `last` the newer one is taken.
FileLock choose_checkpoint(JobConfig& options);

// Returns whether a path is the directory of a run's checkpoint.
bool is_checkpoint(const std::string& path);

}  // namespace snug
