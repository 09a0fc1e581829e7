// What a run writes, and what would fail at its first checkpoint, found out before anything is loaded.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "comm/comm.h"

namespace snug {

// What a run has on disks at most, beside its logs.
struct SavingPlan {
  std::filesystem::path out;      // the run directory: checkpoints, and what is exported
  int64_t keep = 2;               // as Checkpoints takes it
  int64_t saves = 1;              // of the run, at most
  bool keeps_best = false;        // one more
  uint64_t checkpoint_bytes = 0;  // of one, all ranks'
  uint64_t export_bytes = 0;
  uint64_t largest_file = 0;  // of those that a rank writes of either
  bool replaces = false;      // checkpoints and results that are there are removed before the first step
  std::filesystem::path offload_directory;
  uint64_t offloaded_bytes = 0;  // of the ranks here

  // Beside each other: those that are kept, and the one being written. Where all are kept, one more.
  int64_t most_checkpoints() const;
  // With those, and what is exported.
  uint64_t saved_bytes() const { return static_cast<uint64_t>(most_checkpoints()) * checkpoint_bytes + export_bytes; }
  // Options that leave less of them on the disk at a time; "" where nothing does.
  std::string_view what_keeps_fewer() const;
};

// Seconds: NFS remembers for up to 60 that a name was not there, unless it is mounted otherwise.
inline constexpr double kLongestUnseen = 65;

// Makes the directory of checkpoints, which must be one for all ranks (UserError where another than rank 0 does not see
// for so long what that has put there), writes, syncs and removes a small file there on each rank, which before is as
// long as the largest will be, without taking room, so that a limit of that shows; and compares what the run will have
// written at most with what is free, by file system. UserError or DeviceError as files give them; DeviceError with the
// directory, the bytes needed and free, and the options that help. All ranks call it, before they reserve anything;
// rank 0 counts. Who has not seen rank 0's for a twentieth of that time says to `log`, if there is one, what it waits
// for.
void rehearse_saving(const SavingPlan& saving, Comm* comm, const std::function<void(const std::string&)>& log = {},
                     double longest_unseen = kLongestUnseen);

}  // namespace snug
