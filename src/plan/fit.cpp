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

}  // namespace

uint64_t total_bytes(const Arrangement& a) {
  return static_cast<uint64_t>(a.cut.ranks) *
         (a.forecast.arena_bytes[index(Space::Device)] + a.forecast.arena_bytes[index(Space::Host)]);
}

Need tightest(const PerSpace<uint64_t>& bytes, int rank_count, const Caps& caps) {
  const auto ranks = static_cast<uint64_t>(rank_count);
  const uint64_t device = bytes[index(Space::Device)] + caps.driver_bytes, host = ranks * bytes[index(Space::Host)];
  const Need memory = caps.shared ? Need{"device and host together", host + ranks * device, caps.host_bytes}
                                  : Need{"host", host, caps.host_bytes};
  const Need all[] = {memory,
                      {"the device of a rank", device, caps.device_bytes},
                      {"the disk", ranks * bytes[index(Space::Disk)], caps.disk_bytes}};
  return *std::ranges::max_element(all, {}, [](const Need& need) {
    return static_cast<double>(need.bytes) / static_cast<double>(std::max<uint64_t>(need.allowed, 1));
  });
}

namespace {

class Fitting {
 public:
  Fitting(const JobSpec& spec, const Choices& choices, const Caps& caps, const OpFacts& facts, const Pricing& pricing,
          const Alive& alive)
      : spec_(spec), choices_(choices), caps_(caps), facts_(facts), pricing_(pricing), alive_(alive) {}

  FitResult run() {
    for (const Level& level : levels(choices_, caps_.shared)) {
      for (const Cut& cut : cuts(spec_.cut, choices_))
        for (const auto& recompute : recomputes(choices_, spec_.table.blocks.size()))
          for (const int stage : stages(choices_)) try_one(level, cut, recompute, stage);
      if (std::ranges::any_of(result_.tried, &Arrangement::fits)) break;
    }
    choose();
    if (result_.chosen) vary(result_.tried[*result_.chosen]);
    return std::move(result_);
  }

 private:
  void try_one(const Level& level, const Cut& cut, const std::vector<Recompute>& recompute, int stage) {
    Strategy strategy = plain_strategy(spec_.table.blocks.size());
    std::ranges::transform(recompute, strategy.fates.begin(), fates_of);
    strategy.replicas = choices_.replicas;
    strategy.layer_major = choices_.layer_major.value_or(false) && cut.passes > 1;
    set_zero_stage(strategy, stage);
    place(strategy, level, strategy.fates.size());
    const std::string text = words(cut, strategy, stage);
    if (seen_.insert(text).second) add(cut, strategy, text);
  }

  void add(const Cut& cut, const Strategy& strategy, std::string text) {
    JobSpec candidate = spec_;
    candidate.cut = cut;
    candidate.strategy = strategy;
    const Compiled compiled = compile(candidate, facts_);
    Pricing priced = pricing_;
    priced.lanes = lanes_of(strategy, cut);
    Arrangement a{cut, strategy, std::move(text), forecast(compiled), step_seconds(compiled, priced), false};
    const Need need = tightest(a, caps_);
    a.fits = need.bytes <= need.allowed;
    result_.tried.push_back(std::move(a));
    call(alive_);
  }

  // Where transfers can hide behind computing, the same with them in other places of the step.
  void vary(const Arrangement chosen) {
    if (lanes_of(chosen.strategy, chosen.cut) == Lanes::Inline) return;
    const bool orders_are_open = !choices_.layer_major && chosen.cut.passes > 1;
    for (const bool layer_major : {false, true})
      for (const bool deferred : {false, true}) {
        if ((!layer_major && !deferred) || (layer_major && !orders_are_open)) continue;
        Strategy strategy = chosen.strategy;
        strategy.layer_major = layer_major || strategy.layer_major;
        strategy.defer_updates = deferred;
        add(chosen.cut, strategy,
            fmt::format("{}{}{}", chosen.words, layer_major ? ", layer by layer" : "",
                        deferred ? ", deferred updates" : ""));
      }
    choose();
  }

  void choose() {
    std::ranges::stable_sort(result_.tried, {}, &Arrangement::step_seconds);
    result_.chosen.reset();
    const auto fastest = std::ranges::find(result_.tried, true, &Arrangement::fits);
    if (fastest == result_.tried.end()) return;
    auto chosen = fastest;
    for (auto other = fastest; other != result_.tried.end(); ++other)
      if (other->fits && other->step_seconds <= kEqualTime * fastest->step_seconds &&
          total_bytes(*other) < total_bytes(*chosen))
        chosen = other;
    result_.chosen = static_cast<size_t>(chosen - result_.tried.begin());
  }

  const JobSpec& spec_;
  const Choices& choices_;
  const Caps& caps_;
  const OpFacts& facts_;
  const Pricing& pricing_;
  const Alive& alive_;
  FitResult result_;
  std::set<std::string> seen_;
};

}  // namespace

FitResult fit(const JobSpec& spec, const Choices& choices, const Caps& caps, const OpFacts& facts,
              const Pricing& pricing, const Alive& alive) {
  if (choices.ranks % choices.replicas != 0)
    user_error("replicas: found {}, expected a divisor of {} ranks", choices.replicas, choices.ranks);
  return Fitting(spec, choices, caps, facts, pricing, alive).run();
}

}  // namespace snug
