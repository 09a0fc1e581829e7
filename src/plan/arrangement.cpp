#include "plan/arrangement.h"

#include <algorithm>
#include <array>

namespace snug {

std::string_view name(Recompute recompute) {
  constexpr std::array<std::string_view, 4> kNames{"none", "mlp", "attention", "block"};
  return kNames[static_cast<size_t>(recompute)];
}

Strategy plain_strategy(size_t blocks, Recompute recompute) {
  Strategy strategy;
  strategy.recompute.assign(blocks, recompute);
  strategy.groups.assign(blocks + 2, {});
  return strategy;
}

void set_zero_stage(Strategy& strategy, int stage) {
  for (GroupPlacement& group : strategy.groups) {
    group.shard_states = stage >= 1;
    group.shard_weights = stage >= 3;
  }
  strategy.reduce_at_once = stage >= 2;
}

Lanes lanes_of(const Strategy& strategy, const Cut& cut) {
  const auto away = [](const GroupPlacement& group) {
    return group.weights != Space::Device || group.states != Space::Device || group.gradients != Space::Device;
  };
  const bool overlaps = cut.ranks > 1 || strategy.offloaded_blocks > 0 || std::ranges::any_of(strategy.groups, away);
  return overlaps ? Lanes::Threads : Lanes::Inline;
}

}  // namespace snug
