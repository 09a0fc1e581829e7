// What would fail at the first checkpoint, found out before the first step.
#pragma once

#include "train/checkpoint.h"

namespace snug {

struct SavingPlan {
  std::filesystem::path out;   // the run directory: checkpoints, and what is exported
  int64_t keep = 2;            // as Checkpoints takes it
  int64_t saves = 1;           // of the run, at most
  bool keeps_best = false;     // one more
  uint64_t beside_export = 0;  // bytes of files that are copied beside what is exported
  bool replaces = false;       // checkpoints and results that are there are removed before the first step
};

// Makes the directory of checkpoints, writes, syncs and removes a small file there on each rank, and compares what the
// run will have written at most (checkpoints that are kept, the one being written, the export) with what is free, by
// file system. UserError or DeviceError as files give them; DeviceError with the directory, the bytes needed and free,
// and the options that help. All ranks call it; rank 0 counts.
void rehearse_saving(Session& session, const SavingPlan& saving);

}  // namespace snug
