#include "plan/search/simplicity.h"

#include <algorithm>
#include <set>
#include <string>

namespace snug {
namespace {

using Field = Space GroupPlacement::*;
constexpr Field kFields[] = {&GroupPlacement::states, &GroupPlacement::gradients, &GroupPlacement::weights};

}  // namespace

bool rests_on_assumed_memory(const Strategy& strategy, const Caps& caps, Space space) {
  if (space == Space::Host) return caps.host_is_assumed && (caps.shared || offloads(strategy, space));
  return caps.disk_is_assumed && offloads(strategy, space);
}
bool rests_on_assumed_memory(const Strategy& strategy, const Caps& caps) {
  return rests_on_assumed_memory(strategy, caps, Space::Host) || rests_on_assumed_memory(strategy, caps, Space::Disk);
}

Complexity complexity(const Cut& cut, const Strategy& strategy, const Footprint& rank, const Caps& caps) {
  Complexity c;
  c.assumed_memory = rests_on_assumed_memory(strategy, caps);
  std::set<std::string> things;
  for (const ActivationPolicy& policy : strategy.activations) {
    if (policy.has(Retention::Recompute)) {
      things.insert("recompute " + recompute_words(policy));
      c.parts++;
    }
    if (policy.has(Retention::Offload)) {
      things.insert("offload " + (policy == offloaded(policy) ? "all" : offload_words(policy)));
      c.parts++;
    }
  }
  c.things = std::ssize(things);
  for (const Space space : {Space::Host, Space::Disk})
    for (const Field field : kFields)
      if (const auto groups = std::ranges::count(strategy.groups, space, field); groups > 0) {
        c.things++;
        c.parts += groups;
      }
  if (offloads(strategy, Space::Host) || offloads(strategy, Space::Disk)) {
    const uint64_t away = rank.arena_bytes[index(Space::Host)] + rank.arena_bytes[index(Space::Disk)];
    c.gibibytes = static_cast<uint64_t>(caps.ranks_of_node(cut.ranks)) * away >> 30;
  }
  c.moved_passes = strategy.layer_major ? cut.passes : 0;
  c.updates = int{strategy.defer_updates} + int{strategy.speculate} + int{strategy.update_in_backward};
  c.transfers =
      int{strategy.buffer_hold_ops > Strategy{}.buffer_hold_ops} + int{strategy.gather_ahead > Strategy{}.gather_ahead};
  c.sharded_groups = std::ranges::count(strategy.groups, true, &GroupPlacement::shard_weights);
  return c;
}

}  // namespace snug
