// Measures how far an arrangement is from the plain one, to choose among arrangements that take about as long.
#pragma once

#include <compare>

#include "plan/spec/arrangement.h"
#include "plan/spec/caps.h"

namespace snug {

// Compares arrangements field by field, in this order; the one with less is the simpler. What the user pinned is equal
// in all arrangements of a job, and decides nothing.
struct Complexity {
  bool assumed_memory = false;  // rests_on_assumed_memory()
  // Counts things that are recomputed or offloaded, and where to: the classes of values that some layers recompute,
  // those that some layers offload, and states, gradients and weights of groups.
  int64_t things = 0;
  int64_t parts = 0;           // layers that recompute, layers that offload, and groups, counted once for each thing
  uint64_t gibibytes = 0;      // of host and disk, whole ones, that a node takes where anything is offloaded
  int64_t moved_passes = 0;    // all passes of a step that goes layer by layer
  int updates = 0;             // kinds of updates that are deferred, speculative or within the backward
  int transfers = 0;           // 1 where copies end far behind, 2 where fetching begins far ahead as well
  int64_t sharded_groups = 0;  // groups whose weights each rank has a part of
  auto operator<=>(const Complexity&) const = default;
};
Complexity complexity(const Cut& cut, const Strategy& strategy, const Footprint& rank, const Caps& caps);

// Returns whether something is offloaded to this space (Host or Disk) and nobody measured or gave its size (Caps).
// Where device and host are one memory everything rests on the host.
bool rests_on_assumed_memory(const Strategy& strategy, const Caps& caps, Space space);
// Returns whether that holds for the host or the disk.
bool rests_on_assumed_memory(const Strategy& strategy, const Caps& caps);

}  // namespace snug
