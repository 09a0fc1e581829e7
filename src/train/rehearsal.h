// Finds out before anything is loaded what would fail at a run's first checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "comm/comm.h"

namespace snug {

// Says what a run has on disks at most, besides its logs.
struct SavingPlan {
  std::filesystem::path out;      // the run directory: checkpoints, and what is exported
  int64_t keep = 2;               // as Checkpoints takes it
  int64_t saves = 1;              // of the whole run, at most
  bool keeps_best = false;        // one checkpoint more
  uint64_t checkpoint_bytes = 0;  // of one checkpoint, over all ranks
  uint64_t export_bytes = 0;
  uint64_t largest_file = 0;  // that a rank writes to either
  bool replaces = false;      // checkpoints and results from before are removed before the first step
  std::filesystem::path offload_directory;
  uint64_t offloaded_bytes = 0;  // of the ranks of this host

  // Returns how many checkpoints lie beside each other: those that are kept, and the one being written. Where all are
  // kept, one more.
  int64_t most_checkpoints() const;
  // Returns the bytes of those, and of what is exported.
  uint64_t saved_bytes() const { return static_cast<uint64_t>(most_checkpoints()) * checkpoint_bytes + export_bytes; }
  // Returns which these are: " (the last 2, the best, the one being written)"; "" where it is one alone.
  std::string which_checkpoints() const;
  // Returns options that leave fewer of them on the disk at a time; "" if no option does.
  std::string what_keeps_fewer() const;
};

// Seconds in which a rank must see what another wrote: NFS remembers for up to 60 that a name did not exist, unless it
// is mounted otherwise.
inline constexpr double kLongestUnseen = 65;

// Says which disk has less free than a run will have written at most.
struct LackOfRoom {
  uint64_t free = 0, needed = 0;
  // "run: found 100.0 KiB (102400 bytes) free, expected 1.7 MiB (1789952 bytes) for an export of 272.0 KiB, 3
  // checkpoints of 492.0 KiB (the last 2, the one being written); ...", with the options that help.
  std::string words;
};
// Returns it, by file system; nothing where all has room. What an earlier start left and the run replaces is not
// needed. `elsewhere` are the bytes free on another machine, where all lies on one disk.
std::optional<LackOfRoom> lack_of_room(const SavingPlan& saving, std::optional<uint64_t> elsewhere = std::nullopt);

// Makes the directory of checkpoints. It must be one directory for all ranks: UserError where a rank does not see for
// `longest_unseen` seconds what rank 0 has put there. Each rank writes, syncs and removes a small file there, which
// first is as long as the largest will be, without taking room, so that a limit on file sizes shows. Throws UserError
// or DeviceError as files do, and DeviceError with the words of lack_of_room(), if there is one. All ranks call it
// before they reserve anything; rank 0 counts. A rank that has not seen rank 0's sign for a twentieth of that time
// tells `log`, if given, what it waits for.
void rehearse_saving(const SavingPlan& saving, Comm* comm, const std::function<void(const std::string&)>& log = {},
                     double longest_unseen = kLongestUnseen);

}  // namespace snug
