#include "plan/spec/arrangement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/rounding.h"

namespace snug {

int64_t Cut::tokens_of(int shape) const {
  const int of_tokens = shape % token_shapes();
  return of_tokens == 0 ? tokens() : ceil_div(tokens() * short_eighths[static_cast<size_t>(of_tokens) - 1], 8);
}

int64_t Cut::patches_of(int shape) const {
  return patches.empty() ? 0 : micro_batch * patches[static_cast<size_t>(shape / token_shapes())];
}

int Cut::shape_for(int64_t count, int64_t patch_count) const {
  int of_tokens = 0, of_patches = 0;
  for (int shape = token_shapes() - 1; shape > 0; shape--)
    if (tokens_of(shape) >= count) of_tokens = shape;
  for (int i = 1; i < std::ssize(patches); i++)
    if (micro_batch * patches[static_cast<size_t>(i)] >= patch_count) of_patches = i;
  return of_patches * token_shapes() + of_tokens;
}

namespace {
constexpr std::array<std::string_view, 6> kOptimizers{"adamw", "lion",      "schedule_free_adamw",
                                                      "muon",  "adafactor", "apollo"};
}

std::string_view name(Optimizer optimizer) { return kOptimizers[static_cast<size_t>(optimizer)]; }

Optimizer optimizer_from_name(std::string_view name) {
  const auto found = std::ranges::find(kOptimizers, name);
  if (found == kOptimizers.end())
    user_error("optimizer: found '{}', expected one of {}", name, fmt::join(kOptimizers, ", "));
  return static_cast<Optimizer>(found - kOptimizers.begin());
}

std::string_view name(Recompute recompute) {
  constexpr std::array<std::string_view, 4> kNames{"none", "mlp", "attention", "block"};
  return kNames[static_cast<size_t>(recompute)];
}

ActivationPolicy policy_of(Recompute recompute) {
  ActivationPolicy policy;
  const auto again = [&](ActivationClass kind) { policy[kind] = Retention::Recompute; };
  if (recompute == Recompute::Attention || recompute == Recompute::Block) again(ActivationClass::Attention);
  if (recompute == Recompute::Mlp || recompute == Recompute::Block) again(ActivationClass::Mlp);
  if (recompute != Recompute::Block) return policy;
  for (const ActivationClass kind : kPlannedClasses)
    if (kind != ActivationClass::LayerBoundary) again(kind);
  return policy;
}

ActivationPolicy offloaded(ActivationPolicy policy) {
  for (const ActivationClass kind : kPlannedClasses)
    if (policy[kind] == Retention::Keep) policy[kind] = Retention::Offload;
  return policy;
}

namespace {

std::string words_of(const ActivationPolicy& policy, Retention wanted) {
  std::vector<std::string_view> words;
  for (const ActivationClass kind : kPlannedClasses)
    if (policy[kind] == wanted) words.push_back(name(kind));
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, " + "));
}

}  // namespace

std::string recompute_words(const ActivationPolicy& policy) {
  ActivationPolicy layer = policy_of(Recompute::Block);
  layer[ActivationClass::LayerBoundary] = policy[ActivationClass::LayerBoundary];
  return policy == layer ? "block" : words_of(policy, Retention::Recompute);
}

std::string offload_words(const ActivationPolicy& policy) { return words_of(policy, Retention::Offload); }

Strategy plain_strategy(const ParamTable& table, Recompute recompute) {
  Strategy strategy;
  strategy.activations.assign(table.layers.size(), policy_of(recompute));
  strategy.groups.assign(table.groups.size(), {});
  return strategy;
}

void set_zero_stage(Strategy& strategy, int stage) {
  for (GroupPlacement& group : strategy.groups) {
    group.shard_states = stage >= 1;
    group.shard_weights = stage >= 3;
  }
  strategy.reduce_in_backward = stage >= 2;
}

bool offloads(const Strategy& strategy, Space space) {
  const auto waits = [](const ActivationPolicy& policy) { return policy.has(Retention::Offload); };
  const auto away = [&](const GroupPlacement& group) {
    return group.weights == space || group.states == space || group.gradients == space ||
           (space == Space::Host && strategy.speculate && group.states != Space::Device);  // replaced weights
  };
  return (strategy.offloaded_to == space && std::ranges::any_of(strategy.activations, waits)) ||
         std::ranges::any_of(strategy.groups, away);
}

LaneMode lanes_of(const Strategy& strategy, const Cut& cut) {
  const bool overlaps = cut.ranks > 1 || offloads(strategy, Space::Host) || offloads(strategy, Space::Disk);
  return overlaps ? LaneMode::Threads : LaneMode::Inline;
}

int zero_stage(const Strategy& strategy) {
  const GroupPlacement& first = strategy.groups.front();
  return first.shard_weights ? 3 : !first.shard_states ? 0 : strategy.reduce_in_backward ? 2 : 1;
}

}  // namespace snug
