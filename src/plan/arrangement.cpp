#include "plan/arrangement.h"

#include <algorithm>
#include <array>

namespace snug {

std::string_view name(Recompute recompute) {
  constexpr std::array<std::string_view, 4> kNames{"none", "mlp", "attention", "block"};
  return kNames[static_cast<size_t>(recompute)];
}

Fates fates_of(Recompute recompute) {
  Fates fates;
  if (recompute == Recompute::Attention || recompute == Recompute::Block) fates.attention = Fate::Recompute;
  if (recompute == Recompute::Mlp || recompute == Recompute::Block) fates.mlp = Fate::Recompute;
  if (recompute == Recompute::Block) fates.residual = fates.adapter = Fate::Recompute;
  return fates;
}

Fates offloaded(Fates fates) {
  for (Fate* fate : {&fates.input, &fates.attention, &fates.residual, &fates.mlp, &fates.adapter})
    if (*fate == Fate::Keep) *fate = Fate::Offload;
  return fates;
}

namespace {

std::string words_of(const Fates& fates, Fate wanted) {
  std::vector<std::string_view> words;
  for (const auto& [fate, word] :
       {std::pair(fates.input, "input"), std::pair(fates.attention, "attention"), std::pair(fates.residual, "residual"),
        std::pair(fates.mlp, "mlp"), std::pair(fates.adapter, "adapter")})
    if (fate == wanted) words.emplace_back(word);
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, " + "));
}

}  // namespace

std::string recompute_words(const Fates& fates) {
  Fates block = fates_of(Recompute::Block);
  block.input = fates.input;
  return fates == block ? "block" : words_of(fates, Fate::Recompute);
}

std::string offload_words(const Fates& fates) { return words_of(fates, Fate::Offload); }

Strategy plain_strategy(size_t blocks, Recompute recompute) {
  Strategy strategy;
  strategy.fates.assign(blocks, fates_of(recompute));
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
  const auto waits = [](const Fates& fates) { return fates.has(Fate::Offload); };
  const bool overlaps =
      cut.ranks > 1 || std::ranges::any_of(strategy.fates, waits) || std::ranges::any_of(strategy.groups, away);
  return overlaps ? Lanes::Threads : Lanes::Inline;
}

int zero_stage(const Strategy& strategy) {
  const GroupPlacement& first = strategy.groups.front();
  return first.shard_weights ? 3 : !first.shard_states ? 0 : strategy.reduce_at_once ? 2 : 1;
}

}  // namespace snug
