// What may be enabled, bit by bit, so that an arrangement needs less memory.
#pragma once

#include <functional>

#include "plan/search/fit.h"

namespace snug {

struct MemoryOption {
  enum class Kind : uint8_t { Recompute, Shard, Activations, States, Gradients, Weights } kind = Kind::Recompute;
  bool to_disk = false;                         // relieves the host too
  int64_t most = 0;                             // positions: 0, nothing is enabled, to this
  std::function<void(Strategy&, int64_t)> set;  // sets a position
};

// Those that the choices leave open, in the order in which they are to be set: later ones override earlier ones, and
// what is computed again is not sent elsewhere.
std::vector<MemoryOption> open_memory_options(const Choices& choices, int stage, const ParamTable& table);

// Choices of a job that does not train, in this cut on their ranks.
Choices without_training(Choices choices, const Cut& cut);

// With what is pinned, and otherwise everything kept on the device.
Strategy baseline(const Choices& choices, int stage, const ParamTable& table);

// The ZeRO stages that are open, each as the one from which options begin: stage 3 is stage 2 with weights sharded.
std::vector<int> open_stages(const Choices& choices);

// "4 ranks, zero 3, 2 passes of 8 blocks, layer by layer, recompute mlp, no offload": unique among arrangements that
// options of one job make.
std::string arrangement_words(const Cut& cut, const Strategy& strategy);
// "2 ranks, 3 of 4 groups sharded, weights of 2 of 4 groups on the disk": what differs among those of a job that does
// not train.
std::string holding_words(const Cut& cut, const Strategy& strategy);

}  // namespace snug
