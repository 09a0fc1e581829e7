// Counts the bytes of a planned job's ranks and nodes, as reports have them.
#pragma once

#include "api/job.h"
#include "base/rounding.h"

namespace snug {

// Returns what a rank takes of its device with an arrangement of this forecast, the driver's share among it.
inline uint64_t device_bytes(const Planned& planned, const Forecast& f) { return planned.caps.taken(f, Space::Device); }
inline uint64_t driver_bytes(const Planned& planned, Space space) {
  return planned.caps.overhead(planned.shown().forecast, space);
}

inline int node_ranks(const Planned& planned) { return planned.caps.ranks_of_node(planned.shown().cut.ranks); }
inline int nodes_of(const Planned& planned) { return ceil_div(planned.shown().cut.ranks, node_ranks(planned)); }

// Returns the bytes of all ranks of a node; the host's include its files in memory.
inline uint64_t node_bytes(const Planned& planned, const Forecast& f, Space space) {
  const Caps& caps = planned.caps;
  const auto of_ranks = [&](Space of) { return static_cast<uint64_t>(node_ranks(planned)) * caps.taken(f, of); };
  if (space != Space::Host) return of_ranks(space);
  return of_ranks(space) + caps.saved_host_bytes + (caps.disk_is_memory ? of_ranks(Space::Disk) : 0);
}

}  // namespace snug
