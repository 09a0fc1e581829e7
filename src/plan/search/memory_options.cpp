#include "plan/search/memory_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>

namespace snug {
namespace {

using Field = Space GroupPlacement::*;

// Offloads the last groups first: the time between their uses is longest.
void offload_groups(Strategy& strategy, Field field, int64_t count, Space space) {
  const auto groups = static_cast<int64_t>(strategy.groups.size());
  for (int64_t g = groups - count; g < groups; g++) strategy.groups[static_cast<size_t>(g)].*field = space;
}

void place(Strategy& strategy, Field field, const std::optional<Offload>& pinned) {
  if (pinned)
    offload_groups(strategy, field, std::llround(pinned->share * static_cast<double>(strategy.groups.size())),
                   pinned->space);
}

struct Kind {
  MemoryOption::Kind kind;
  std::optional<Offload> Choices::*pinned;
  Field field;
};
constexpr std::array kOffloads{Kind{MemoryOption::Kind::States, &Choices::states, &GroupPlacement::states},
                               Kind{MemoryOption::Kind::Gradients, &Choices::gradients, &GroupPlacement::gradients},
                               Kind{MemoryOption::Kind::Weights, &Choices::parameters, &GroupPlacement::weights}};

// Recomputes in `count` layers from this one on what this setting recomputes, besides what they recompute already.
void recompute_layers(Strategy& strategy, Recompute recompute, int64_t first, int64_t count) {
  const ActivationPolicy more = policy_of(recompute);
  for (int64_t b = first; b < first + count; b++)
    for (const ActivationClass kind : kPlannedClasses)
      if (more[kind] == Retention::Recompute) strategy.activations[static_cast<size_t>(b)][kind] = Retention::Recompute;
}

// Offloads values of `count` layers from this one on: those that the backward needs last.
void offload_values(Strategy& strategy, std::optional<ActivationClass> only, int64_t first, int64_t count,
                    Space space) {
  for (int64_t b = first; b < first + count; b++)
    for (const ActivationClass kind : kPlannedClasses) {
      Retention& retention = strategy.activations[static_cast<size_t>(b)][kind];
      if (retention == Retention::Recompute || (only && *only != kind)) continue;
      retention = Retention::Offload;
      strategy.offloaded_to = space;
    }
}

// Returns what the layers that a backward reaches, from this one on, keep for it.
std::span<const ActivationPolicy> kept_from(const Strategy& strategy, int first) {
  return std::span(strategy.activations).subspan(static_cast<size_t>(first));
}

// Returns how many layers have each text that `words` says of a layer, in the order of their first layers.
template <class Words>
std::vector<std::pair<std::string, size_t>> counted(std::span<const ActivationPolicy> layers, Words words) {
  std::vector<std::pair<std::string, size_t>> counts;
  for (const ActivationPolicy& policy : layers) {
    const std::string text = words(policy);
    const auto known = std::ranges::find(counts, text, &std::pair<std::string, size_t>::first);
    if (known == counts.end())
      counts.emplace_back(text, 1);
    else
      known->second++;
  }
  return counts;
}

std::string recompute_words(std::span<const ActivationPolicy> layers) {
  const auto counts = counted(layers, [](const ActivationPolicy& policy) { return recompute_words(policy); });
  if (counts.empty()) return "none";
  if (counts.size() == 1) return counts[0].first;
  std::vector<std::string> words;
  for (const auto& [what, count] : counts)
    if (what != "none") words.push_back(fmt::format("{} in {} of {} layers", what, count, layers.size()));
  return fmt::format("{}", fmt::join(words, " and "));
}

// Says how many of the layers that a backward reaches, and of the groups, have something offloaded; of states and
// gradients only the groups from the first trained one on have any.
std::string offload_words(const Strategy& strategy, int first_layer, int first_trained) {
  std::vector<std::string> words;
  const auto layer_words = [](const ActivationPolicy& policy) {
    return policy == offloaded(policy) ? "activations" : offload_words(policy);
  };
  for (const auto& [what, count] : counted(kept_from(strategy, first_layer), layer_words))
    if (what != "none")
      words.push_back(fmt::format("{} of {} {} on the {}", what, count, count == 1 ? "layer" : "layers",
                                  name(strategy.offloaded_to)));
  auto count = [&](std::string_view what, Field field, int first) {
    const auto groups = std::span(strategy.groups).subspan(static_cast<size_t>(first));
    for (const Space space : {Space::Host, Space::Disk}) {
      const auto away = std::ranges::count(groups, space, field);
      if (away == 0) continue;
      const bool all = static_cast<size_t>(away) == groups.size();
      words.push_back(all ? fmt::format("{} on the {}", what, name(space))
                          : fmt::format("{} of {} of {} groups on the {}", what, away, groups.size(), name(space)));
    }
  };
  count("states", &GroupPlacement::states, first_trained);
  count("gradients", &GroupPlacement::gradients, first_trained);
  count("weights", &GroupPlacement::weights, 0);
  return words.empty() ? "no offload" : fmt::format("{}", fmt::join(words, ", "));
}

std::string stage_words(const Strategy& strategy) {
  const auto groups = static_cast<std::ptrdiff_t>(strategy.groups.size());
  const auto sharded = std::ranges::count(strategy.groups, true, &GroupPlacement::shard_weights);
  if (sharded > 0 && sharded < groups) return fmt::format("3 in {} of {} groups", sharded, groups);
  return fmt::format("{}", zero_stage(strategy));
}

}  // namespace

Choices without_training(Choices choices, const Cut& cut) {
  choices.micro_batch = cut.micro_batch;
  choices.passes = 1;
  choices.batch_size = choices.ranks * cut.micro_batch;
  choices.replicas = 1;
  choices.recompute = Recompute::None;
  choices.recomputed_layers = std::nullopt;
  choices.layer_major = choices.speculate = choices.update_in_backward = false;
  choices.activations = choices.states = choices.gradients = Offload{};
  return choices;
}

std::vector<int> open_stages(const Choices& choices) {
  if (choices.zero) return {*choices.zero};
  return choices.ranks == 1 ? std::vector{0} : std::vector{0, 2};
}

Strategy baseline(const Choices& choices, int stage, const ParamTable& table) {
  const int64_t first = table.first_layer_of_backward(), layers = std::ssize(table.layers) - first;
  Strategy strategy = plain_strategy(table);
  recompute_layers(strategy, choices.recompute.value_or(Recompute::None), first, layers);
  strategy.replicas = choices.replicas;
  strategy.speculate = choices.speculate;
  set_zero_stage(strategy, stage);
  if (choices.ranks == 1) strategy.reduce_in_backward = true;  // nothing to wait for
  strategy.update_in_backward = choices.update_in_backward && strategy.reduce_in_backward;
  if (choices.recomputed_layers)
    recompute_layers(strategy, Recompute::Block, first, std::min(layers, *choices.recomputed_layers));
  for (const Kind& kind : kOffloads) place(strategy, kind.field, choices.*kind.pinned);
  if (choices.activations)
    offload_values(strategy, std::nullopt, first,
                   std::llround(choices.activations->share * static_cast<double>(layers)), choices.activations->space);
  return strategy;
}

std::vector<MemoryOption> open_memory_options(const Choices& choices, int stage, const ParamTable& table) {
  const int64_t first = table.first_layer_of_backward(), layers = std::ssize(table.layers) - first,
                groups = std::ssize(table.groups), trained = groups - table.first_trained_group();
  std::vector<MemoryOption> options;
  if (!choices.recompute && !choices.recomputed_layers)
    for (const Recompute r : {Recompute::Mlp, Recompute::Attention, Recompute::Block})
      options.push_back({MemoryOption::Kind::Recompute, false, layers,
                         [=](Strategy& s, int64_t n) { recompute_layers(s, r, first, n); }});
  if (!choices.zero && stage == 2)
    options.push_back({MemoryOption::Kind::Shard, false, groups, [](Strategy& s, int64_t n) {
                         for (auto g = s.groups.end() - n; g != s.groups.end(); ++g) g->shard_weights = true;
                       }});
  for (const Space space : {Space::Host, Space::Disk}) {
    const bool frees_host = space == Space::Disk;
    for (const std::optional<ActivationClass> only :
         {std::optional(ActivationClass::Mlp), std::optional(ActivationClass::Attention),
          std::optional<ActivationClass>()})
      if (!choices.activations)
        options.push_back({MemoryOption::Kind::Activations, frees_host, layers,
                           [=](Strategy& s, int64_t n) { offload_values(s, only, first, n, space); }});
    for (const Kind& kind : kOffloads)
      if (!(choices.*kind.pinned))
        options.push_back(
            {kind.kind, frees_host, kind.kind == MemoryOption::Kind::Weights ? groups : trained,
             [field = kind.field, space](Strategy& s, int64_t n) { offload_groups(s, field, n, space); }});
  }
  return options;
}

std::string arrangement_words(const Cut& cut, const Strategy& strategy, const ParamTable& table) {
  const int first_layer = table.first_layer_of_backward();
  const bool states_away =
      std::ranges::any_of(strategy.groups, [](const GroupPlacement& group) { return group.states != Space::Device; });
  std::string ranks;
  if (cut.ranks > 1) ranks = fmt::format("{} ranks, zero {}, ", cut.ranks, stage_words(strategy));
  if (strategy.replicas > 1) ranks += fmt::format("{} replicas, ", strategy.replicas);
  return fmt::format("{}{} {} of {} {}{}{}{}{}, recompute {}, {}", ranks, cut.passes,
                     cut.passes == 1 ? "pass" : "passes", cut.micro_batch, cut.micro_batch == 1 ? "block" : "blocks",
                     strategy.layer_major ? ", layer by layer" : "", strategy.defer_updates ? ", deferred updates" : "",
                     strategy.update_in_backward         ? ", updates in the backward"
                     : strategy.speculate && states_away ? ", speculative updates"
                                                         : "",
                     strategy.gather_ahead > 1                               ? ", fetching far ahead"
                     : strategy.buffer_hold_ops > Strategy{}.buffer_hold_ops ? ", copies far behind"
                                                                             : "",
                     recompute_words(kept_from(strategy, first_layer)),
                     offload_words(strategy, first_layer, table.first_trained_group()));
}

std::string holding_words(const Cut& cut, const Strategy& strategy) {
  const int layers = static_cast<int>(strategy.activations.size()), groups = static_cast<int>(strategy.groups.size());
  const std::string offload = offload_words(strategy, layers, groups);  // nothing is kept, and nothing trained
  if (cut.ranks == 1) return fmt::format("1 rank, {}", offload);
  const auto shared = [](const GroupPlacement& g) { return g.shard_weights || g.weights != Space::Device; };
  const auto sharded = std::ranges::count_if(strategy.groups, shared);
  const std::string what = sharded == groups ? "weights sharded"
                           : sharded == 0    ? "all weights on each"
                                             : fmt::format("{} of {} groups sharded", sharded, groups);
  return fmt::format("{} ranks, {}, {}", cut.ranks, what, offload);
}

}  // namespace snug
