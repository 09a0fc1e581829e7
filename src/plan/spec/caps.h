// Says what a job may take of a machine, and what it takes of a card besides what is planned.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "program/program.h"

namespace snug {

// Holds what a rank needs for an arrangement.
struct Footprint {
  PerSpace<uint64_t> arena_bytes{};  // what Arena will reserve
  uint64_t ops = 0;                  // that it binds, in all its programs
};

struct Caps {
  uint64_t device_bytes = std::numeric_limits<uint64_t>::max();  // a rank
  uint64_t host_bytes = std::numeric_limits<uint64_t>::max();    // all ranks of a node
  uint64_t disk_bytes = std::numeric_limits<uint64_t>::max();    // all ranks of a node
  std::optional<int> node_ranks;                                 // most ranks on one node; nothing: all of the job's
  int ranks_of_node(int ranks) const { return node_ranks.value_or(ranks); }
  bool shared = false;  // device and host are one memory (CPU): host_bytes limits both together
  // Files in memory (tmpfs) count against the host: those of the disk space, if that is one, and what a node saves.
  bool disk_is_memory = false;
  uint64_t saved_host_bytes = 0;
  // Says whether nobody measured or gave host_bytes and disk_bytes: a machine known only by name is assumed to have
  // them.
  bool host_is_assumed = false, disk_is_assumed = false;
  // Names what limits host_bytes, where it is neither an option nor the machine's memory: "ulimit -v".
  std::string host_limit{};
  // These bytes of a device count against device_bytes beside the arena: the driver's, those of the links between
  // ranks, and page tables for the host arenas of `tabled_ranks` ranks. These are the ranks of one process, whose
  // arenas it maps on each of its cards.
  uint64_t driver_bytes = 0, link_bytes = 0;
  int tabled_ranks = 0;
  // These bytes of the host count against host_bytes beside the arena: a rank's share of what its process takes, with
  // what it takes to read images, and what each bound op takes.
  uint64_t driver_host_bytes = 0, op_host_bytes = 0;
  // Returns what is taken besides the arena; taken() adds the arena.
  uint64_t overhead(const Footprint& rank, Space space) const;
  uint64_t taken(const Footprint& rank, Space space) const {
    return rank.arena_bytes[index(space)] + overhead(rank, space);
  }
};

// Compares what an arrangement takes of one capped resource with the cap.
struct Need {
  // Returns the bytes beyond the cap; negative where it is kept.
  double excess() const { return static_cast<double>(bytes) - static_cast<double>(allowed); }
  uint64_t missing() const { return bytes - std::min(bytes, allowed); }

  std::string what;  // "the device of a rank"
  uint64_t bytes = 0, allowed = 0;
  Space space = Space::Device;                // the space whose arena it is, or has most of it
  std::string_view option = "device_memory";  // that caps it
  std::string limit{};                        // for the host: Caps::host_limit
};
// Returns what is needed under every cap that is not implied by another.
std::vector<Need> needs(const Footprint& rank, int ranks, const Caps& caps);
// Returns the need that exceeds its cap by the most bytes or, if none does, comes nearest to it.
Need tightest_need(const Footprint& rank, int ranks, const Caps& caps);
bool fits(const Footprint& rank, int ranks, const Caps& caps);

}  // namespace snug
