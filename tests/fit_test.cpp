// The planner's choice: what the user pinned stays, what is open is the fastest that fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "backend/cpu/facts.h"
#include "base/rng.h"
#include "brute_force.h"
#include "expect_error.h"
#include "no_scratch.h"
#include "plan/search/memory_options.h"
#include "tiny_model.h"

namespace snug {
namespace {

JobSpec job() { return tiny_job("llama", "adapter_init", DType::BF16); }

// Full fine-tuning of that shape with so many layers.
JobSpec llama_3_8b(int64_t layers, int64_t sequence_length) {
  JobSpec spec;
  const std::filesystem::path model = std::filesystem::path(SNUG_FIXTURES) / "configs/llama-3-8b";
  spec.model = read_model_config(model).spec;
  spec.model.layers.resize(static_cast<size_t>(layers));
  spec.cut.sequence_length = sequence_length;
  spec.table = full_parameters(spec.model, true);
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  return spec;
}

uint64_t device_bytes(const Arrangement& a) { return a.forecast.arena_bytes[index(Space::Device)]; }

// Of a rank, wherever.
uint64_t total_bytes(const Arrangement& a) {
  return std::accumulate(a.forecast.arena_bytes.begin(), a.forecast.arena_bytes.end(), uint64_t{0});
}

Complexity complexity_of(const Arrangement& a, const Caps& caps) {
  return complexity(a.cut, a.strategy, a.forecast, caps);
}

const Arrangement& chosen(const FitResult& result) { return result.tried[result.chosen.value()]; }

TEST(Fit, WithoutACapNothingIsRecomputed) {
  Choices choices;
  choices.batch_size = 4;
  const FitResult result = fit(job(), choices, {}, CpuFacts());
  for (const ActivationPolicy& policy : chosen(result).strategy.activations) EXPECT_EQ(policy, ActivationPolicy());
}

TEST(Fit, BelowTheSmallestNothingIsChosen) {
  Choices choices;
  choices.batch_size = 4;
  Caps caps;
  caps.device_bytes = 1 << 16;
  const FitResult result = fit(job(), choices, caps, CpuFacts());
  EXPECT_FALSE(result.chosen);
  ASSERT_EQ(result.tried.size(), 1u);  // what comes nearest
  EXPECT_FALSE(result.tried[0].fits);
}

TEST(Fit, PinnedChoicesAreKept) {
  Choices choices;
  choices.batch_size = 12;
  choices.ranks = 2;
  choices.micro_batch = 2;
  choices.recompute = Recompute::Attention;
  choices.zero = 1;
  choices.activations = Offload{0.5, Space::Host};
  choices.states = Offload{0.5, Space::Disk};
  choices.gradients = choices.parameters = Offload{};
  choices.layer_major = false;
  for (const uint64_t bytes : {1ull << 40, 1ull << 10}) {
    Caps caps;
    caps.device_bytes = bytes;
    const FitResult result = fit(job(), choices, caps, CpuFacts());
    ASSERT_LE(result.tried.size(), 4u);  // with copies far behind, far ahead, or deferred updates besides
    const auto& [cut, strategy, words, forecast, seconds, fits] = result.tried[0];
    EXPECT_EQ(fits, bytes > 1ull << 30);
    EXPECT_EQ(cut.passes, 3);
    EXPECT_EQ(strategy.activations[0], offloaded(policy_of(Recompute::Attention)));
    EXPECT_EQ(strategy.activations[1], policy_of(Recompute::Attention));
    EXPECT_FALSE(strategy.layer_major);
    EXPECT_EQ(std::ranges::count(strategy.groups, Space::Disk, &GroupPlacement::states), 2);
    for (const GroupPlacement& group : strategy.groups) {
      EXPECT_TRUE(group.shard_states && !group.shard_weights);
      EXPECT_TRUE(group.gradients == Space::Device && group.weights == Space::Device);
    }
    EXPECT_FALSE(strategy.reduce_in_backward);
  }
}

// Without prices the fastest of all that fit is chosen; with prices the simplest of those within the margin of it, or
// what is simpler still. Here as there a hundredth of the time decides nothing.
TEST(Fit, IsAsFastAsTheBestOfAllThatFitOrWithPricesAsSimpleAsAnyNearIt) {
  for (const bool full : {false, true})
    for (const int ranks : {1, 2}) {
      if (!full && ranks == 2) continue;
      const JobSpec spec = full ? tiny_job("llama", std::nullopt, DType::BF16) : job();
      const BruteForce all(spec, 4, ranks);
      const CpuFacts facts;
      Choices choices;
      choices.batch_size = 4;
      choices.ranks = ranks;
      const Pricing pricing = balanced();
      Pricing priced = pricing;
      priced.file = "machine.json";
      Fitter fitter(spec, choices, facts, pricing), with_prices(spec, choices, facts, priced);
      for (const double share : {1.0, 0.9, 0.7, 0.5, 0.4})
        for (const double host : {2.0, 0.5}) {
          Caps caps;
          caps.device_bytes = static_cast<uint64_t>(share * static_cast<double>(all.most(Space::Device)));
          caps.host_bytes =
              static_cast<uint64_t>(host * static_cast<double>(all.most(Space::Host)) * static_cast<double>(ranks));
          const BruteForce::Tried* best = all.fastest(caps);
          for (const auto& [planner, assumed] :
               {std::pair(&fitter, false), std::pair(&with_prices, false), std::pair(&with_prices, true)}) {
            caps.host_is_assumed = assumed;
            const FitResult result = planner->fit(caps);
            if (!best) continue;
            const std::string job =
                fmt::format("{} on {} ranks under {} and {}{}: {} against {}", full ? "full" : "lora", ranks, share,
                            host, assumed ? ", assumed" : "", result.tried[0].words, all.words(*best));
            ASSERT_TRUE(result.chosen) << job;
            for (const Need& need : needs(chosen(result).forecast, ranks, caps))
              EXPECT_LE(need.bytes, need.allowed) << need.what;
            const double fastest = result.tried[0].step_seconds, margin = planner == &fitter ? 1 : time_margin(priced);
            EXPECT_LE(fastest, 1.01 * best->seconds) << job;
            EXPECT_LE(chosen(result).step_seconds, margin * 1.01 * best->seconds) << job;
            if (planner == &fitter) continue;
            const BruteForce::Tried* simplest = all.simplest(caps, margin / 1.01 * std::min(fastest, best->seconds));
            if (simplest) {
              EXPECT_LE(complexity_of(chosen(result), caps), simplest->complexity(caps))
                  << job << "; chosen " << chosen(result).words << ", simplest " << all.words(*simplest);
            }
          }
        }
    }
}

// What fits with part of the states there must not be missed because all of them do not, nor be slower for it.
TEST(Fit, TakesOfTheHostAsMuchAsThereIs) {
  const JobSpec spec = llama_3_8b(4, 2048);
  const CpuFacts facts;
  for (const bool speculate : {false, true}) {
    Choices part;
    part.batch_size = part.micro_batch.emplace(4);
    part.speculate = speculate;
    part.recompute = Recompute::Mlp;
    part.activations = part.gradients = part.parameters = Offload{};
    part.states = Offload{0.5, Space::Host};
    const FitResult pinned = fit(spec, part, {}, facts, balanced());
    const Arrangement& known = chosen(pinned);
    for (const uint64_t op_host_bytes : {0u, 1200u}) {
      Caps caps;
      caps.device_bytes = device_bytes(known);
      caps.op_host_bytes = op_host_bytes;
      // On the way there options are on that what is known has not, and bind some ops more.
      caps.host_bytes = caps.taken(known.forecast, Space::Host) + 64 * op_host_bytes;
      caps.disk_bytes = 0;
      Choices open;
      open.batch_size = part.batch_size;
      open.micro_batch = part.micro_batch;
      open.speculate = speculate;
      const FitResult result = fit(spec, open, caps, facts, balanced());
      const std::string& words = result.tried[0].words;
      ASSERT_TRUE(result.chosen) << words << ", though this fits: " << known.words;
      EXPECT_LE(chosen(result).step_seconds, 1.02 * known.step_seconds) << words << " against " << known.words;
      EXPECT_TRUE(fits(forecast(result.compiled), 1, caps)) << words;
    }
  }
}

// Clipping needs all gradients first; of a job without it a group's or two are there at a time.
TEST(Fit, WithoutClippingMostGradientsNeedNoRoom) {
  JobSpec spec = llama_3_8b(16, 128);
  spec.step_only = true;
  uint64_t all = 0, largest = 0;
  for (int g = 0; g < spec.table.group_count(); g++) {
    uint64_t bytes = 0;
    for (const ParamSpec& param : spec.table.params)
      if (param.group == g) bytes += 2 * static_cast<uint64_t>(param.shape.count());
    all += bytes;
    largest = std::max(largest, bytes);
  }
  const auto taken = [&](bool in_backward) {
    spec.numerics.max_grad_norm = in_backward ? 0 : 1;
    Choices plain;
    plain.batch_size = 1;
    plain.update_in_backward = in_backward;
    const FitResult result = fit(spec, plain, {}, CpuFacts(), balanced());
    EXPECT_EQ(chosen(result).words.find("updates in the backward") != std::string::npos, in_backward);
    return device_bytes(chosen(result));
  };
  const uint64_t clipped = taken(false), unclipped = taken(true);
  EXPECT_GE(clipped - unclipped, all - 2 * largest);
  EXPECT_LE(clipped - unclipped, all);
}

TEST(Fit, TakesAFewDozenCompilations) {
  const NoScratch facts;
  const JobSpec spec = job();
  Choices choices;
  choices.batch_size = 64;
  choices.ranks = 2;
  const Pricing pricing = balanced();
  Fitter fitter(spec, choices, facts, pricing);
  const uint64_t whole = device_bytes(chosen(fitter.fit({})));
  EXPECT_LE(fitter.compiled(), 20u);
  for (const double share : {0.9, 0.6, 0.4}) {
    const size_t before = fitter.compiled();
    Caps caps;
    caps.device_bytes = static_cast<uint64_t>(share * static_cast<double>(whole));
    fitter.fit(caps);
    EXPECT_LE(fitter.compiled() - before, 320u) << share;  // at 0.35 to 0.4, by the rank of adapters, 78 to 303
    const size_t after = fitter.compiled();
    caps.device_bytes += whole / 20;
    fitter.near(caps);
    EXPECT_LE(fitter.compiled() - after, 120u) << share;
  }
}

// Else a plan would say that more memory buys nothing, or that less costs more than it does.
TEST(Fit, NearTheSameCapsNothingIsSlower) {
  const CpuFacts facts;
  const JobSpec spec = job();
  Choices choices;
  choices.batch_size = 8;
  const Pricing pricing = balanced();
  Fitter fitter(spec, choices, facts, pricing);
  const uint64_t whole = device_bytes(chosen(fitter.fit({})));
  for (const double share : {0.9, 0.7, 0.6, 0.5, 0.4}) {
    Caps caps;
    caps.device_bytes = static_cast<uint64_t>(share * static_cast<double>(whole));
    const FitResult result = fitter.fit(caps);
    if (!result.chosen) continue;
    const double seconds = chosen(result).step_seconds;
    double before = seconds;
    for (const uint64_t more : {uint64_t{0}, whole / 20, whole / 10}) {
      Caps larger = caps;
      larger.device_bytes += more;
      const std::optional<Arrangement> near = fitter.near(larger);
      ASSERT_TRUE(near) << share;
      EXPECT_LE(near->step_seconds, 1.001 * before) << share << ' ' << more;
      before = near->step_seconds;
    }
  }
}

TEST(Fit, WhereNothingMovesNothingIsFetchedFarAhead) {
  Choices choices;
  choices.batch_size = 4;
  choices.speculate = true;
  EXPECT_EQ(chosen(fit(job(), choices, {}, CpuFacts())).strategy.gather_ahead, Strategy().gather_ahead);
}

// What is said of an arrangement tells it from all others that options make.
TEST(Fit, WordsTellArrangementsApart) {
  const ParamTable table = job().table;
  const Random random(3, RandomPurpose::DataOrder);
  std::map<std::string, Strategy> known;
  uint64_t draws = 0;
  auto below = [&](int64_t bound) { return static_cast<int64_t>(random.below(draws++, static_cast<uint64_t>(bound))); };
  for (int i = 0; i < 2000; i++) {
    Choices choices;
    choices.ranks = 4;
    choices.replicas = static_cast<int>(1 + below(2));
    const int stage = below(2) == 0 ? 0 : 2;
    Strategy strategy = baseline(choices, stage, table);
    for (const MemoryOption& option : open_memory_options(choices, stage, table))
      if (below(3) == 0) option.set(strategy, below(option.most + 1));
    strategy.layer_major = below(2) == 0;
    strategy.defer_updates = below(2) == 0;
    if (below(2) == 0) strategy.gather_ahead = 3;
    const std::string words = arrangement_words(Cut{.ranks = 4}, strategy, table);
    EXPECT_EQ(known.try_emplace(words, strategy).first->second, strategy) << words;
  }
  EXPECT_GT(known.size(), 1000u);
}

// Layers that the backward does not reach keep nothing for it: no option concerns them, and none counts them.
TEST(Fit, OptionsConcernWhatTheBackwardReaches) {
  JobSpec spec = llama_3_8b(6, 2048);
  spec.table = lora_parameters(spec.model,
                               {.rank = 8,
                                .alpha = 8,
                                .target_modules = linear_names(spec.model),
                                .layers_to_transform = std::vector<int64_t>{4, 5}},
                               true);
  EXPECT_EQ(spec.table.first_layer_of_backward(), 4);
  EXPECT_EQ(spec.table.first_trained_group(), 5);
  Choices choices;
  for (const MemoryOption& option : open_memory_options(choices, 0, spec.table)) {
    const bool of_layers =
        option.kind == MemoryOption::Kind::Recompute || option.kind == MemoryOption::Kind::Activations;
    const bool of_weights = option.kind == MemoryOption::Kind::Weights;
    EXPECT_EQ(option.most, of_layers ? 2 : of_weights ? 8 : 3);
    Strategy strategy = plain_strategy(spec.table);
    option.set(strategy, 1);
    EXPECT_EQ(strategy.activations[4] != ActivationPolicy(), of_layers);
    for (const size_t layer : {0u, 1u, 2u, 3u, 5u}) EXPECT_EQ(strategy.activations[layer], ActivationPolicy());
  }
  choices.recompute = Recompute::Mlp;
  choices.states = Offload{1, Space::Host};
  const Strategy strategy = baseline(choices, 0, spec.table);
  EXPECT_EQ(strategy.activations[3], ActivationPolicy());
  EXPECT_EQ(strategy.activations[4], policy_of(Recompute::Mlp));
  EXPECT_EQ(arrangement_words({}, strategy, spec.table), "1 pass of 1 block, recompute mlp, states on the host");
  choices.recompute.reset();
  choices.recomputed_layers = 1;
  choices.states = Offload{0.25, Space::Host};
  EXPECT_EQ(arrangement_words({}, baseline(choices, 0, spec.table), spec.table),
            "1 pass of 1 block, recompute block in 1 of 2 layers, states of 2 of 3 groups on the host");
}

// Forward values are computed again where products are quick, and wait elsewhere where its disk is.
TEST(Fit, ChoosesBetweenComputingAgainAndOffloading) {
  JobSpec spec = job();
  const std::filesystem::path model = std::filesystem::path(SNUG_FIXTURES) / "configs/llama-3-8b";
  spec.model = read_model_config(model).spec;
  spec.model.layers.resize(6);
  spec.cut.sequence_length = 2048;
  spec.table = lora_parameters(spec.model, {.rank = 8, .alpha = 8, .target_modules = linear_names(spec.model)}, true);
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  Choices choices;
  choices.batch_size = choices.micro_batch.emplace(4);
  choices.states = choices.gradients = choices.parameters = Offload{};
  for (const bool slow_disk : {false, true}) {
    Pricing pricing = balanced();
    Machine& machine = pricing.machine;
    (slow_disk ? machine.disk.write : machine.teams.front().flops) = 1e6;
    const CpuFacts facts;
    Fitter fitter(spec, choices, facts, pricing);
    Caps caps;
    caps.shared = true;
    caps.host_bytes = caps.device_bytes = total_bytes(chosen(fitter.fit({}))) - (1 << 28);
    const Strategy strategy = chosen(fitter.fit(caps)).strategy;
    const bool computes_again = std::ranges::any_of(
        strategy.activations, [](const ActivationPolicy& policy) { return recompute_words(policy) != "none"; });
    const bool offloads = std::ranges::any_of(
        strategy.activations, [](const ActivationPolicy& policy) { return offload_words(policy) != "none"; });
    EXPECT_EQ(computes_again, slow_disk);
    EXPECT_EQ(offloads, !slow_disk);
  }
}

// Of a model that is used: on every rank while it fits, then shared, then elsewhere; nothing else is open.
TEST(Fit, WeightsThatAreNotTrainedAreSharedAsFarAsMemoryDemands) {
  JobSpec spec;
  spec.model = read_model_config(std::filesystem::path(SNUG_FIXTURES) / "configs" / "llama-3-8b").spec;
  spec.table = full_parameters(spec.model, false);
  spec.sources = find_sources(spec.table,
                              {std::filesystem::path(SNUG_FIXTURES) / "configs" / "llama-3-8b", true, 1, std::nullopt});
  Choices choices;
  choices.ranks = 2;
  choices.recompute = Recompute::Block;  // of training, as batch_size is
  for (const Purpose purpose : {Purpose::Evaluate, Purpose::Generate}) {
    spec.purpose = purpose;
    spec.cache_positions = purpose == Purpose::Generate ? 2048 : 0;
    spec.cut.sequence_length = purpose == Purpose::Generate ? 1 : 2048;
    const CpuFacts facts;
    Fitter fitter(spec, choices, facts, balanced());
    const auto capped = [&](uint64_t gigabytes) {
      Caps caps;
      caps.device_bytes = gigabytes << 30;
      const FitResult result = fitter.fit(caps);
      const Arrangement& a = chosen(result);
      EXPECT_LE(device_bytes(a), caps.device_bytes);
      EXPECT_EQ(a.cut.micro_batch * a.cut.passes, 1);
      return a;
    };
    const size_t groups = spec.table.groups.size();
    EXPECT_EQ(capped(80).words, "2 ranks, all weights on each, no offload");
    const Strategy some = capped(14).strategy;
    const auto sharded = std::ranges::count(some.groups, true, &GroupPlacement::shard_weights);
    EXPECT_TRUE(sharded > 0 && static_cast<size_t>(sharded) < groups);
    EXPECT_EQ(std::ranges::count(some.groups, Space::Device, &GroupPlacement::weights), std::ssize(some.groups));
    EXPECT_THAT(capped(6).words, testing::HasSubstr("on the host"));
  }
}

// Ranks of other nodes have memory of their own.
TEST(Fit, CountsTheRanksOfANode) {
  PerSpace<uint64_t> bytes{};
  bytes[index(Space::Device)] = 10;
  bytes[index(Space::Host)] = 3;
  bytes[index(Space::Disk)] = 7;
  Caps caps;
  auto of = [&](std::string_view what) {
    const std::vector<Need> all = needs({bytes}, 8, caps);
    const auto need = std::ranges::find(all, what, &Need::what);
    return need == all.end() ? 0 : need->bytes;
  };
  EXPECT_EQ(of("the device of a rank"), 10u);
  EXPECT_EQ(of("the host of a node"), 24u);
  EXPECT_EQ(of("the disk of a node"), 56u);
  caps.node_ranks = 2;
  EXPECT_EQ(of("the device of a rank"), 10u);
  EXPECT_EQ(of("the host of a node"), 6u);
  EXPECT_EQ(of("the disk of a node"), 14u);
  caps.shared = true;
  EXPECT_EQ(of("device and host of a node"), 26u);
  EXPECT_EQ(of("the device of a rank"), 0u);  // implied
  caps.device_bytes = 20;
  EXPECT_EQ(of("the device of a rank"), 10u);
}

// Of the host a process takes what its ops need beside its arena: by each op, whichever arrangement has how many.
TEST(Fit, CountsTheOpsOfAnArrangement) {
  Caps caps;
  caps.driver_host_bytes = 100;
  caps.op_host_bytes = 10;
  Footprint rank;
  rank.arena_bytes[index(Space::Host)] = 3;
  rank.ops = 7;
  EXPECT_EQ(caps.overhead(rank, Space::Host), 170u);
  EXPECT_EQ(caps.overhead(rank, Space::Device), 0u);
  EXPECT_EQ(needs(rank, 2, caps)[1].bytes, 2 * 173u);
}

// A machine where every op takes a second, whatever it does.
Pricing a_second_an_op(LaneMode lanes) {
  Pricing pricing;
  pricing.lanes = lanes;
  pricing.machine.disk.read = pricing.machine.disk.write = pricing.machine.link = 1e18;
  TeamRates& team = pricing.machine.teams.front();
  team.op_seconds = 1;
  team.flops = 1e18;
  team.copy = {{1}, {1e18}};
  return pricing;
}

double ops_of_step(const Compiled& compiled) {
  double ops = 0;
  auto add = [&](Task task) { ops += static_cast<double>(compiled.set.programs[compiled.at(task)].ops.size()); };
  for (const Task task : compiled.passes) add(task);
  add(Task::Update);
  return ops;
}

TEST(Fit, TakesOnEveryRankWhatTheFullestNeedsAndSaysWhatEachDoes) {
  Choices choices;
  choices.batch_size = choices.ranks = 4;
  choices.zero = 3;
  choices.states = Offload{1, Space::Disk};
  JobSpec spec = tiny_job("llama", std::nullopt, DType::BF16);
  const FitResult result = fit(spec, choices, {}, CpuFacts());
  spec.cut = chosen(result).cut;
  spec.strategy = chosen(result).strategy;
  PerSpace<uint64_t> fullest{}, first{};
  for (spec.rank = 0; spec.rank < 4; spec.rank++) {
    const PerSpace<uint64_t> bytes = compile(spec, CpuFacts()).plan.reserved_bytes;
    if (spec.rank == 0) first = bytes;
    EXPECT_EQ(result.ranks.at(static_cast<size_t>(spec.rank)).bytes, bytes);
    raise(fullest, bytes);
  }
  EXPECT_NE(first, fullest);
  EXPECT_EQ(result.compiled.plan.reserved_bytes, fullest);
  EXPECT_EQ(chosen(result).forecast.arena_bytes, fullest);
}

TEST(StepSeconds, OneAfterTheOtherTheyAddUp) {
  for (const int64_t passes : {1, 2, 3, 7}) {
    JobSpec spec = job();
    spec.cut.passes = passes;
    const Compiled compiled = compile(spec, CpuFacts());
    EXPECT_NEAR(step_seconds(compiled, a_second_an_op(LaneMode::Inline)), ops_of_step(compiled), 1e-6);
  }
}

// Lanes of their own hide transfers, and no more than those; middle passes are all alike.
TEST(StepSeconds, LanesOverlap) {
  JobSpec spec = job();
  for (ActivationPolicy& policy : spec.strategy.activations)
    policy[ActivationClass::LayerBoundary] = Retention::Offload;
  std::array<double, 10> by_passes{};
  for (const int64_t passes : {1, 3, 4, 5, 9}) {
    spec.cut.passes = passes;
    const Compiled compiled = compile(spec, CpuFacts());
    const double seconds = step_seconds(compiled, a_second_an_op(LaneMode::Threads));
    double computing = 0;
    auto count = [&](Task task) {
      for (const Op& op : compiled.set.programs[compiled.at(task)].ops) computing += op.lane == Lane::Compute;
    };
    for (const Task task : compiled.passes) count(task);
    count(Task::Update);
    EXPECT_LT(seconds, ops_of_step(compiled) - 0.5);
    EXPECT_GT(seconds, computing - 0.5);
    by_passes[static_cast<size_t>(passes)] = seconds;
  }
  EXPECT_NEAR(by_passes[5] - by_passes[4], by_passes[4] - by_passes[3], 1e-6);
  EXPECT_NEAR(by_passes[9] - by_passes[5], 4 * (by_passes[5] - by_passes[4]), 1e-6);
}

// Where nothing is hidden all that is at work adds to a step; of lanes with threads a step is longer by less.
TEST(StepSeconds, WhatAStepWaitsForIsNamed) {
  JobSpec spec = job();
  for (ActivationPolicy& policy : spec.strategy.activations)
    policy[ActivationClass::LayerBoundary] = Retention::Offload;
  const Compiled compiled = compile(spec, CpuFacts());
  double sum = 0;
  const std::vector<Bound> one_by_one = bounds_of_step(compiled, a_second_an_op(LaneMode::Inline));
  for (const Bound& bound : one_by_one) {
    EXPECT_GE(bound.adds, bound.busy - 1e-9) << bound.what;
    sum += bound.adds;
  }
  EXPECT_NEAR(sum, step_seconds(compiled, a_second_an_op(LaneMode::Inline)), 1e-6);
  const std::vector<Bound> overlapped = bounds_of_step(compiled, a_second_an_op(LaneMode::Threads));
  ASSERT_EQ(overlapped.size(), 3u);
  EXPECT_EQ(overlapped[0].what, "computing");
  const auto bus = std::ranges::find(overlapped, "bus", &Bound::what);
  ASSERT_NE(bus, overlapped.end());
  EXPECT_GT(bus->busy, 0);
  EXPECT_LT(bus->adds, bus->busy);
}

// What is priced is how train runs it: with something to overlap lanes have threads, else they follow each other.
TEST(Fit, PricesLanesAsTheyRun) {
  Choices choices;
  choices.batch_size = 4;
  choices.states = Offload{1, Space::Host};
  for (const Arrangement& a : fit(job(), choices, {}, CpuFacts(), a_second_an_op(LaneMode::Inline)).tried) {
    JobSpec spec = job();
    spec.cut = a.cut;
    spec.strategy = a.strategy;
    EXPECT_EQ(a.step_seconds, step_seconds(compile(spec, CpuFacts()), a_second_an_op(LaneMode::Threads)));
  }
  for (const int ranks : {1, 2})
    EXPECT_EQ(lanes_of(plain_strategy(job().table), Cut{.ranks = ranks}),
              ranks == 1 ? LaneMode::Inline : LaneMode::Threads);
}

TEST(Fit, OrdersByTheGivenMachine) {
  Choices choices;
  choices.batch_size = 4;
  const FitResult result = fit(job(), choices, {}, CpuFacts(), a_second_an_op(LaneMode::Inline));
  EXPECT_TRUE(std::ranges::is_sorted(result.tried, {}, &Arrangement::step_seconds));
  EXPECT_GT(result.tried.size(), 1u);
  for (const Arrangement& a : result.tried) {
    JobSpec spec = job();
    spec.cut = a.cut;
    spec.strategy = a.strategy;
    EXPECT_NEAR(a.step_seconds, ops_of_step(compile(spec, CpuFacts())), 1e-6) << a.words;
  }
  EXPECT_EQ(chosen(result).cut.passes, 1);
}

TEST(Fit, ACutThatDoesNotMakeTheBatchIsRefused) {
  Choices choices;
  choices.batch_size = 6;
  choices.micro_batch = 2;
  choices.passes = 2;
  EXPECT_TRUE(fails_with<UserError>([&] { fit(job(), choices, {}, CpuFacts()); }, "makes 4 blocks, batch_size is 6"));
  choices.passes.reset();
  choices.micro_batch = 4;
  EXPECT_TRUE(fails_with<UserError>([&] { fit(job(), choices, {}, CpuFacts()); },
                                    "micro_batch_size 4 does not divide batch_size 6"));
}

}  // namespace
}  // namespace snug
