// Lists what may be enabled, step by step, so that an arrangement needs less memory.
#pragma once

#include <functional>

#include "plan/search/fit.h"

namespace snug {

struct MemoryOption {
  enum class Kind : uint8_t { Recompute, Shard, Activations, States, Gradients, Weights } kind = Kind::Recompute;
  bool frees_host = false;                      // frees the host's memory too
  int64_t most = 0;                             // positions go from 0, where nothing is enabled, to this
  std::function<void(Strategy&, int64_t)> set;  // sets a position
};

// Returns the options that the choices leave open, in the order in which they are to be set: later ones override
// earlier ones, and what is recomputed is not offloaded.
std::vector<MemoryOption> open_memory_options(const Choices& choices, int stage, const ParamTable& table);

// Returns the choices of a job that does not train, in this cut and on its ranks.
Choices without_training(Choices choices, const Cut& cut);

// Returns the strategy with what is pinned, and otherwise everything kept on the device.
Strategy baseline(const Choices& choices, int stage, const ParamTable& table);

// Returns the ZeRO stages that are open as those from which options begin: stage 3 is stage 2 with weights sharded.
std::vector<int> open_stages(const Choices& choices);

// Returns words that are unique among the arrangements which the options of one job make: "4 ranks, zero 3, 2 passes of
// 8 blocks, layer by layer, recompute mlp, no offload".
std::string arrangement_words(const Cut& cut, const Strategy& strategy, const ParamTable& table);
// Returns words for what differs among arrangements of a job that does not train: "2 ranks, 3 of 4 groups sharded,
// weights of 2 of 4 groups on the disk".
std::string holding_words(const Cut& cut, const Strategy& strategy);

}  // namespace snug
