// Finds the arrangements of a job that fit the memory it may use, fastest first.
#pragma once

#include <limits>
#include <optional>

#include "base/alive.h"
#include "plan/forecast.h"

namespace snug {

// How much of something waits elsewhere, and where.
struct Offload {
  double share = 0;  // of the groups, or of the blocks
  Space space = Space::Host;
};

// What the user pinned; what is open the planner chooses.
struct Choices {
  int64_t batch_size = 16;
  int ranks = 1;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> passes;
  std::optional<int> zero;                   // stage 0 to 3
  int replicas = 1;                          // of the shards
  std::optional<Recompute> recompute;        // of every block
  std::optional<int64_t> recomputed_blocks;  // the first so many blocks wholly, the others not at all
  std::optional<Offload> activations, states, gradients, parameters;
  std::optional<bool> layer_major;
};

struct Caps {
  uint64_t device_bytes = std::numeric_limits<uint64_t>::max();  // a rank
  uint64_t host_bytes = std::numeric_limits<uint64_t>::max();    // all ranks of a machine
  uint64_t disk_bytes = std::numeric_limits<uint64_t>::max();    // likewise
  bool shared = false;        // device and host are one memory (CPU): host_bytes holds for both together
  uint64_t driver_bytes = 0;  // taken beside the arenas, and counted against device_bytes
};

struct Arrangement {
  Cut cut;
  Strategy strategy;
  std::string words;  // "2 passes of 8 blocks, recompute mlp, no offload"
  Forecast forecast;
  double step_seconds = 0;  // by the pricing that fit() was given
  bool fits = false;
};

// Of device and host together, over all ranks.
uint64_t total_bytes(const Arrangement& arrangement);

// What an arrangement takes of one thing that is capped.
struct Need {
  std::string_view what;  // "device and host together"
  uint64_t bytes = 0, allowed = 0;
};
// The cap that ranks of so many bytes each come closest to, or break by most.
Need tightest(const PerSpace<uint64_t>& rank_bytes, int ranks, const Caps& caps);
inline Need tightest(const Arrangement& a, const Caps& caps) {
  return tightest(a.forecast.arena_bytes, a.cut.ranks, caps);
}

struct FitResult {
  std::vector<Arrangement> tried;  // fastest first
  std::optional<size_t> chosen;    // of those that fit and are within 2 % of the fastest such, the smallest
};

// Compiles candidates (a fraction of a second each even for 70B) and orders them: first those that keep everything on
// the device, and only if none of them fits those that offload states, then gradients, then parameters as well; of the
// best also with updates deferred and in layer-major order, where there are transfers to hide. `spec`
// gives everything but cut and strategy; `pricing` all but how lanes are run (lanes_of()); `alive`: called for each
// candidate. UserError if batch_size, ranks, micro-batch and passes do not agree.
FitResult fit(const JobSpec& spec, const Choices& choices, const Caps& caps, const OpFacts& facts,
              const Pricing& pricing = {}, const Alive& alive = {});

}  // namespace snug
