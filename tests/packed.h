// Programs made ready to run, for tests.
#pragma once

#include "program/pack.h"
#include "program/sync.h"

namespace snug {

struct Packed {
  ProgramSet set;
  MemoryPlan plan;
};

inline Packed pack_and_sync(ProgramSet set) {
  MemoryPlan plan = pack(set, 16);
  sync(set, plan);
  verify(set, plan);
  return {std::move(set), std::move(plan)};
}

// Calls f with each op that waits and each of its waits taken away.
template <class F>
void for_each_dropped_wait(ProgramSet& set, F&& f) {
  for (ProgramId p = 0; p < set.programs.size(); p++)
    for (Op& op : set.programs[p].ops) {
      const std::vector<Wait> waits = op.waits;
      for (size_t i = 0; i < waits.size(); i++) {
        op.waits.erase(op.waits.begin() + static_cast<std::ptrdiff_t>(i));
        f(p, op, waits[i]);
        op.waits = waits;
      }
    }
}

}  // namespace snug
