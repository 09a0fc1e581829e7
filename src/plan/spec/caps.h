// What a job may take of a machine, and what it takes of a card beside what is planned.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "program/program.h"

namespace snug {

// What a rank has of an arrangement.
struct Footprint {
  PerSpace<uint64_t> arena_bytes{};  // what Arena will reserve
  uint64_t ops = 0;                  // that it binds, of all its programs
};

struct Caps {
  uint64_t device_bytes = std::numeric_limits<uint64_t>::max();  // a rank
  uint64_t host_bytes = std::numeric_limits<uint64_t>::max();    // all ranks of a node
  uint64_t disk_bytes = std::numeric_limits<uint64_t>::max();    // likewise
  std::optional<int> node_ranks;  // how many ranks one node has at most; nothing: all of the job's
  int ranks_of_node(int ranks) const { return node_ranks.value_or(ranks); }
  bool shared = false;  // device and host are one memory (CPU): host_bytes holds for both together
  // Files in memory (tmpfs) count to the host: what waits on the disk, if that is one; and what a node saves.
  bool disk_is_memory = false;
  uint64_t saved_host_bytes = 0;
  // Whether nobody measured or gave host_bytes and disk_bytes: a machine that is only named is taken to have them.
  bool host_is_assumed = false, disk_is_assumed = false;
  // What leaves no more than host_bytes, where neither an option nor the machine's own memory does: "ulimit -v".
  std::string host_limit{};
  // What the driver takes of a device beside the arena counts against device_bytes: this; what connects ranks; and
  // tables of the pages of so many ranks' host arenas, those of one process, all of which it knows on each card.
  uint64_t driver_bytes = 0, link_bytes = 0;
  int tabled_ranks = 0;
  // And of the host, against host_bytes: a rank's share of what its process takes, and what each op takes that is
  // bound.
  uint64_t driver_host_bytes = 0, op_host_bytes = 0;
  // All that, and with its arena.
  uint64_t overhead(const Footprint& rank, Space space) const;
  uint64_t taken(const Footprint& rank, Space space) const {
    return rank.arena_bytes[index(space)] + overhead(rank, space);
  }
};

// What an arrangement takes of one thing that is capped.
struct Need {
  // Returns the bytes beyond the cap; negative where it is kept.
  double excess() const { return static_cast<double>(bytes) - static_cast<double>(allowed); }
  uint64_t missing() const { return bytes - std::min(bytes, allowed); }

  std::string what;  // "the device of a rank"
  uint64_t bytes = 0, allowed = 0;
  Space space = Space::Device;                // whose arena it is, or most of it
  std::string_view option = "device-memory";  // that caps it
  std::string limit{};                        // Caps::host_limit, of the host
};
// Returns what is needed under every cap that is not implied by another.
std::vector<Need> needs(const Footprint& rank, int ranks, const Caps& caps);
// Returns the need that is beyond its cap by the most bytes, or nearest to it.
Need tightest_need(const Footprint& rank, int ranks, const Caps& caps);
bool fits(const Footprint& rank, int ranks, const Caps& caps);

}  // namespace snug
