// The planner's choice: what the user pinned stays, what is open is the fastest that fits.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/facts.h"
#include "expect_error.h"
#include "plan/fit.h"
#include "tiny_model.h"

namespace snug {
namespace {

JobSpec job() { return tiny_job("llama", "adapter_init", DType::BF16); }

uint64_t device_bytes(const Arrangement& a) { return a.forecast.arena_bytes[index(Space::Device)]; }

TEST(Fit, WithoutACapNothingIsRecomputed) {
  Choices choices;
  choices.batch_size = 4;
  const FitResult result = fit(job(), choices, {}, CpuFacts());
  ASSERT_TRUE(result.chosen);
  for (const Fates& fates : result.tried[*result.chosen].strategy.fates) EXPECT_EQ(fates, Fates());
}

TEST(Fit, UnderEveryCapTheChoiceFitsAndNothingFasterDoes) {
  Choices choices;
  choices.batch_size = 4;
  const FitResult all = fit(job(), choices, {}, CpuFacts());
  for (const Arrangement& cap : all.tried) {
    Caps caps;
    caps.device_bytes = device_bytes(cap);
    const FitResult result = fit(job(), choices, caps, CpuFacts());
    ASSERT_TRUE(result.chosen);
    const Arrangement& chosen = result.tried[*result.chosen];
    EXPECT_LE(device_bytes(chosen), caps.device_bytes);
    for (const Arrangement& other : result.tried) {
      if (other.step_seconds < 0.98 * chosen.step_seconds) {
        EXPECT_GT(device_bytes(other), caps.device_bytes);
      }
    }
  }
}

TEST(Fit, BelowTheSmallestNothingIsChosen) {
  Choices choices;
  choices.batch_size = 4;
  Caps caps;
  caps.device_bytes = 1 << 16;
  EXPECT_FALSE(fit(job(), choices, caps, CpuFacts()).chosen);
}

TEST(Fit, PinnedChoicesAreKept) {
  Choices choices;
  choices.batch_size = 6;
  choices.micro_batch = 2;
  choices.recompute = Recompute::Attention;
  choices.activations = Offload{0.5, Space::Host};
  const FitResult result = fit(job(), choices, {}, CpuFacts());
  ASSERT_EQ(result.tried.size(), 4u);  // with updates in place or deferred, in two orders
  for (const Arrangement& a : result.tried) {
    EXPECT_EQ(a.cut.passes, 3);
    EXPECT_EQ(a.strategy.fates[0], offloaded(fates_of(Recompute::Attention)));
    EXPECT_EQ(a.strategy.fates[1], fates_of(Recompute::Attention));
  }
}

// A machine where every op takes a second, whatever it does.
Pricing a_second_an_op(Lanes lanes) {
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

TEST(StepSeconds, OneAfterTheOtherTheyAddUp) {
  for (const int64_t passes : {1, 2, 3, 7}) {
    JobSpec spec = job();
    spec.cut.passes = passes;
    const Compiled compiled = compile(spec, CpuFacts());
    EXPECT_NEAR(step_seconds(compiled, a_second_an_op(Lanes::Inline)), ops_of_step(compiled), 1e-6);
  }
}

// Lanes of their own hide transfers, and no more than those; middle passes are all alike.
TEST(StepSeconds, LanesOverlap) {
  JobSpec spec = job();
  for (Fates& fates : spec.strategy.fates) fates.input = Fate::Offload;
  std::array<double, 10> by_passes{};
  for (const int64_t passes : {1, 3, 4, 5, 9}) {
    spec.cut.passes = passes;
    const Compiled compiled = compile(spec, CpuFacts());
    const double seconds = step_seconds(compiled, a_second_an_op(Lanes::Threads));
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

// What is priced is how train runs it: with something to overlap lanes have threads, else they follow each other.
TEST(Fit, PricesLanesAsTheyRun) {
  Choices choices;
  choices.batch_size = 4;
  choices.states = Offload{1, Space::Host};
  for (const Arrangement& a : fit(job(), choices, {}, CpuFacts(), a_second_an_op(Lanes::Inline)).tried) {
    JobSpec spec = job();
    spec.cut = a.cut;
    spec.strategy = a.strategy;
    EXPECT_EQ(a.step_seconds, step_seconds(compile(spec, CpuFacts()), a_second_an_op(Lanes::Threads)));
  }
  EXPECT_EQ(lanes_of(plain_strategy(2), Cut{}), Lanes::Inline);
  EXPECT_EQ(lanes_of(plain_strategy(2), Cut{.ranks = 2}), Lanes::Threads);
}

TEST(Fit, OrdersByTheGivenMachine) {
  Choices choices;
  choices.batch_size = 4;
  const Pricing pricing = a_second_an_op(Lanes::Inline);
  const FitResult result = fit(job(), choices, {}, CpuFacts(), pricing);
  EXPECT_TRUE(std::ranges::is_sorted(result.tried, {}, &Arrangement::step_seconds));
  for (const Arrangement& a : result.tried) {
    JobSpec spec = job();
    spec.cut = a.cut;
    spec.strategy = a.strategy;
    EXPECT_NEAR(a.step_seconds, ops_of_step(compile(spec, CpuFacts())), 1e-6) << a.words;
  }
  EXPECT_EQ(result.tried[*result.chosen].cut.passes, 1);
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
