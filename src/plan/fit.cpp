#include "plan/fit.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace snug {
namespace {

// Of a pass: their numbers are 32 bits wide.
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

// Times closer than this are one: the arrangement with fewer bytes is taken.
constexpr double kEqualTime = 1.02;

// Every way to cut a step that the user left open: all divisors of the batch.
std::vector<Cut> cuts(const Cut& base, const Choices& choices) {
  if (choices.batch_size % choices.ranks != 0)
    user_error("batch_size: found {}, expected a multiple of {} ranks", choices.batch_size, choices.ranks);
  const int64_t batch = choices.batch_size / choices.ranks;
  if (choices.micro_batch && choices.passes && *choices.micro_batch * *choices.passes != batch)
    user_error("micro_batch_size {} times gradient_accumulation_steps {} on {} ranks makes {} blocks, batch_size is {}",
               *choices.micro_batch, *choices.passes, choices.ranks,
               *choices.micro_batch * *choices.passes * choices.ranks, choices.batch_size);
  std::vector<Cut> result;
  for (int64_t micro = 1; micro <= batch; micro++) {
    if (batch % micro != 0 || micro * base.sequence_length > kMostTokens) continue;
    if (choices.micro_batch && micro != *choices.micro_batch) continue;
    if (choices.passes && batch / micro != *choices.passes) continue;
    Cut cut = base;
    cut.micro_batch = micro;
    cut.passes = batch / micro;
    cut.ranks = choices.ranks;
    result.push_back(cut);
  }
  if (result.empty() && choices.micro_batch && batch % *choices.micro_batch == 0)
    user_error("micro_batch_size {} of sequence_length {}: found {} tokens a pass, expected at most {}",
               *choices.micro_batch, base.sequence_length, *choices.micro_batch * base.sequence_length, kMostTokens);
  if (result.empty())
    user_error("{} {} does not divide batch_size {}{}",
               choices.micro_batch ? "micro_batch_size" : "gradient_accumulation_steps",
               choices.micro_batch ? *choices.micro_batch : *choices.passes, choices.batch_size,
               choices.ranks > 1 ? fmt::format(" over {} ranks", choices.ranks) : "");
  return result;
}

std::vector<std::vector<Recompute>> recomputes(const Choices& choices, size_t blocks) {
  if (choices.recomputed_blocks) {
    std::vector<Recompute> mixed(blocks, Recompute::None);
    std::fill_n(mixed.begin(), std::min<size_t>(blocks, static_cast<size_t>(*choices.recomputed_blocks)),
                Recompute::Block);
    return {mixed};
  }
  std::vector<std::vector<Recompute>> all;
  for (const Recompute r : {Recompute::None, Recompute::Mlp, Recompute::Attention, Recompute::Block})
    if (!choices.recompute || *choices.recompute == r) all.emplace_back(blocks, r);
  return all;
}

// What is offloaded at one level of need, where the user left it open.
struct Level {
  Offload activations, states, gradients, parameters;
};

// Where device and host are one memory, only the disk is elsewhere.
std::vector<Level> levels(const Choices& choices, bool shared) {
  std::vector<Level> all{{}};
  if (!shared) all.push_back({{1, Space::Host}, {}, {}, {}});
  for (const Space space : shared ? std::vector{Space::Disk} : std::vector{Space::Host, Space::Disk}) {
    const Offload away{1, space}, activations = shared ? Offload{} : Offload{1, Space::Host};
    all.push_back({activations, away, {}, {}});
    all.push_back({activations, away, away, {}});
    all.push_back({activations, away, away, away});
  }
  for (Level& level : all) {
    level.activations = choices.activations.value_or(level.activations);
    level.states = choices.states.value_or(level.states);
    level.gradients = choices.gradients.value_or(level.gradients);
    level.parameters = choices.parameters.value_or(level.parameters);
  }
  return all;
}

void place(Strategy& strategy, const Level& level, size_t blocks) {
  // The last groups first: their bytes are at home longest before they are used again.
  auto apply = [&](const Offload& offload, Space GroupPlacement::*field) {
    const size_t groups = strategy.groups.size();
    const auto away = static_cast<size_t>(std::llround(offload.share * static_cast<double>(groups)));
    for (size_t g = groups - away; g < groups; g++) strategy.groups[g].*field = offload.space;
  };
  apply(level.states, &GroupPlacement::states);
  apply(level.gradients, &GroupPlacement::gradients);
  apply(level.parameters, &GroupPlacement::weights);
  for (auto b = std::llround(level.activations.share * static_cast<double>(blocks)); b > 0; b--) {
    Fates& fates = strategy.fates[static_cast<size_t>(b - 1)];
    fates = offloaded(fates);
  }
  strategy.offloaded_to = level.activations.space;
}

std::vector<int> stages(const Choices& choices) {
  if (choices.zero) return {*choices.zero};
  return choices.ranks == 1 ? std::vector{0} : std::vector{0, 2, 3};
}

std::string offload_words(const Strategy& strategy) {
  std::vector<std::string> words;
  if (const auto away = std::ranges::count(strategy.fates, Fate::Offload, &Fates::input); away > 0)
    words.push_back(fmt::format("activations of {} blocks on the {}", away, name(strategy.offloaded_to)));
  auto count = [&](std::string_view what, Space GroupPlacement::*field) {
    for (const Space space : {Space::Host, Space::Disk}) {
      const auto away = std::ranges::count(strategy.groups, space, field);
      if (away == 0) continue;
      const bool all = static_cast<size_t>(away) == strategy.groups.size();
      words.push_back(
          all ? fmt::format("{} on the {}", what, name(space))
              : fmt::format("{} of {} of {} groups on the {}", what, away, strategy.groups.size(), name(space)));
    }
  };
  count("states", &GroupPlacement::states);
  count("gradients", &GroupPlacement::gradients);
  count("weights", &GroupPlacement::weights);
  return words.empty() ? "no offload" : fmt::format("{}", fmt::join(words, ", "));
}

std::string words(const Cut& cut, const Strategy& strategy, int stage) {
  std::set<std::string> kinds;
  for (const Fates& fates : strategy.fates) kinds.insert(recompute_words(fates));
  const std::string recompute =
      kinds.size() == 1
          ? *kinds.begin()
          : fmt::format("{} of {} blocks", std::ranges::count(strategy.fates, Fate::Recompute, &Fates::residual),
                        strategy.fates.size());
  std::string ranks;
  if (cut.ranks > 1) ranks = fmt::format("{} ranks, zero {}, ", cut.ranks, stage);
  if (strategy.replicas > 1) ranks += fmt::format("{} replicas, ", strategy.replicas);
  return fmt::format("{}{} {} of {} {}{}, recompute {}, {}", ranks, cut.passes, cut.passes == 1 ? "pass" : "passes",
                     cut.micro_batch, cut.micro_batch == 1 ? "block" : "blocks",
                     strategy.layer_major ? ", layer by layer" : "", recompute, offload_words(strategy));
}

bool fits(const Arrangement& a, const Caps& caps) {
  const auto ranks = static_cast<uint64_t>(a.cut.ranks);
  const Forecast& f = a.forecast;
  const uint64_t device = f.arena_bytes[index(Space::Device)] + caps.driver_bytes,
                 host = ranks * f.arena_bytes[index(Space::Host)], disk = ranks * f.arena_bytes[index(Space::Disk)];
  if (disk > caps.disk_bytes || device > caps.device_bytes) return false;
  return (caps.shared ? host + ranks * device : host) <= caps.host_bytes;
}

}  // namespace

uint64_t total_bytes(const Arrangement& a) {
  return static_cast<uint64_t>(a.cut.ranks) *
         (a.forecast.arena_bytes[index(Space::Device)] + a.forecast.arena_bytes[index(Space::Host)]);
}

FitResult fit(const JobSpec& spec, const Choices& choices, const Caps& caps, const OpFacts& facts,
              const Pricing& pricing, const Alive& alive) {
  if (choices.ranks % choices.replicas != 0)
    user_error("replicas: found {}, expected a divisor of {} ranks", choices.replicas, choices.ranks);
  FitResult result;
  Pricing priced = pricing;
  const size_t blocks = spec.table.blocks.size();
  std::set<std::string> seen;
  for (const Level& level : levels(choices, caps.shared)) {
    for (const Cut& cut : cuts(spec.cut, choices))
      for (const auto& recompute : recomputes(choices, blocks))
        for (const int stage : stages(choices)) {
          JobSpec candidate = spec;
          candidate.cut = cut;
          candidate.strategy = plain_strategy(blocks);
          std::ranges::transform(recompute, candidate.strategy.fates.begin(), fates_of);
          candidate.strategy.replicas = choices.replicas;
          candidate.strategy.layer_major = choices.layer_major.value_or(false) && cut.passes > 1;
          set_zero_stage(candidate.strategy, stage);
          place(candidate.strategy, level, blocks);
          const std::string text = words(cut, candidate.strategy, stage);
          if (!seen.insert(text).second) continue;
          const Compiled compiled = compile(candidate, facts);
          priced.lanes = lanes_of(candidate.strategy, cut);
          Arrangement a{cut, candidate.strategy, text, forecast(compiled), step_seconds(compiled, priced), false};
          a.fits = fits(a, caps);
          result.tried.push_back(std::move(a));
          call(alive);
        }
    if (std::ranges::any_of(result.tried, &Arrangement::fits)) break;
  }
  std::ranges::stable_sort(result.tried, {}, &Arrangement::step_seconds);
  const auto fastest = std::ranges::find(result.tried, true, &Arrangement::fits);
  if (fastest == result.tried.end()) return result;
  auto chosen = fastest;
  for (auto other = fastest; other != result.tried.end(); ++other)
    if (other->fits && other->step_seconds <= kEqualTime * fastest->step_seconds &&
        total_bytes(*other) < total_bytes(*chosen))
      chosen = other;
  result.chosen = static_cast<size_t>(chosen - result.tried.begin());
  return result;
}

}  // namespace snug
