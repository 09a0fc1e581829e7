// A strategy never changes a bit: losses, norms and weights are == whatever is recomputed, offloaded, on how many
// threads and lanes.
#include <gtest/gtest.h>

#include <cstring>

#include "tiny_model.h"

namespace snug {
namespace {

constexpr int64_t kSteps = 3;

struct Outcome {
  std::vector<StepResult> steps;
  std::vector<std::vector<float>> weights;
  bool operator==(const Outcome&) const = default;
};

struct Variant {
  Strategy strategy;
  int threads = 1;
  LaneMode lanes = LaneMode::Inline;
};

Outcome train(JobSpec spec, const Variant& variant) {
  spec.strategy = variant.strategy;
  Session session(spec, variant.threads, variant.lanes);
  session.load();
  TinyTrainer trainer(session);
  trainer.pack_samples(true);
  Outcome outcome;
  const auto samples = tiny_samples();
  for (int64_t number = 1; number <= kSteps; number++)
    outcome.steps.push_back(trainer.step(step_samples(samples, number, 4), number, 1e-2));
  for (size_t i = 0; i < spec.table.params.size(); i++)
    if (spec.table.params[i].trainable) outcome.weights.push_back(values(session, session.compiled().owned[i].weight));
  return outcome;
}

void offload_blocks(Strategy& strategy, size_t count) {
  for (size_t b = 0; b < count; b++) strategy.activations[b] = offloaded(strategy.activations[b]);
}

struct Case {
  std::string family;
  bool lora;
  DType compute;
  int64_t passes;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}_{}_{}passes", c.family, c.lora ? "lora" : "full", name(c.compute), c.passes);
}

class StrategyIdentity : public testing::TestWithParam<Case> {
 protected:
  JobSpec spec() const {
    const Case& c = GetParam();
    JobSpec spec = tiny_job(c.family, c.lora ? std::optional<std::string>("adapter_init") : std::nullopt, c.compute);
    spec.cut.passes = c.passes;
    spec.cut.micro_batch = 4 / c.passes;
    return spec;
  }
};

TEST_P(StrategyIdentity, RecomputingAndOffloadingChangeNoBit) {
  const JobSpec job = spec();
  Variant plain{job.strategy};
  const Outcome expected = train(job, plain);
  for (const Recompute recompute : {Recompute::None, Recompute::Mlp, Recompute::Attention, Recompute::Block})
    for (const size_t away : {0u, 1u, 2u}) {
      Variant variant = plain;
      variant.strategy = plain_strategy(job.table, recompute);
      offload_blocks(variant.strategy, away);
      EXPECT_TRUE(train(job, variant) == expected) << name(recompute) << ", " << away << " offloaded";
    }
  Variant mixed = plain;
  mixed.strategy.activations[0] = policy_of(Recompute::Block);
  mixed.strategy.buffer_hold_ops = 0;
  offload_blocks(mixed.strategy, 2);
  EXPECT_TRUE(train(job, mixed) == expected) << "a block recomputed, nothing reserved beyond its op";
}

TEST_P(StrategyIdentity, ThreadsAndLanesChangeNoBit) {
  const JobSpec job = spec();
  const Outcome expected = train(job, {job.strategy});
  for (const int threads : {1, 2, 3})
    for (const LaneMode lanes : {LaneMode::Inline, LaneMode::Threads}) {
      Variant variant{job.strategy, threads, lanes};
      offload_blocks(variant.strategy, 2);
      EXPECT_TRUE(train(job, variant) == expected)
          << threads << " threads, " << (lanes == LaneMode::Threads ? "lanes" : "inline");
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, StrategyIdentity,
                         testing::Values(Case{"llama", true, DType::F32, 1}, Case{"llama", false, DType::BF16, 2},
                                         Case{"qwen2", false, DType::F32, 4}, Case{"qwen2_tied", false, DType::BF16, 1},
                                         Case{"qwen2", true, DType::BF16, 2}, Case{"llama_gqa7", true, DType::BF16, 4},
                                         Case{"llama3", false, DType::F32, 2}),
                         name_of);

// With blocks that are mostly padding.
JobSpec with_short_passes(int64_t passes) {
  JobSpec job = tiny_job("llama", std::nullopt, DType::F32);
  job.cut.passes = passes;
  job.cut.micro_batch = 4 / passes;
  job.cut.sequence_length = 80;
  job.cut.short_eighths = {3, 5};
  return job;
}

TEST(ShortPasses, ComputeWhatWholeOnesDo) {
  for (const int64_t passes : {1, 2, 4}) {
    JobSpec job = with_short_passes(passes);
    const Outcome found = train(job, {job.strategy});
    job.cut.short_eighths.clear();
    const Outcome whole = train(job, {job.strategy});
    for (size_t i = 0; i < found.steps.size(); i++) {
      EXPECT_NEAR(found.steps[i].loss, whole.steps[i].loss, 1e-5 * whole.steps[i].loss);
      EXPECT_NEAR(found.steps[i].norm, whole.steps[i].norm, 1e-5 * whole.steps[i].norm);
    }
  }
}

TEST(ShortPasses, AStrategyChangesNoBitOfThem) {
  const JobSpec job = with_short_passes(2);
  const Outcome expected = train(job, {job.strategy});
  Variant moved{plain_strategy(job.table, Recompute::Attention)};
  offload_blocks(moved.strategy, 2);
  EXPECT_TRUE(train(job, moved) == expected);
  moved.strategy.defer_updates = true;
  EXPECT_TRUE(train(job, moved) == expected) << "updates in the next step";
}

TEST(ShortPasses, TheShortestThatHoldsTheDocumentsIsTaken) {
  Cut cut{.sequence_length = 80, .micro_batch = 2, .short_eighths = {3, 5}};
  EXPECT_EQ(cut.tokens_of(0), 160);
  EXPECT_EQ(cut.tokens_of(1), 60);
  EXPECT_EQ(cut.shape_for(0), 1);
  EXPECT_EQ(cut.shape_for(60), 1);
  EXPECT_EQ(cut.shape_for(61), 2);
  EXPECT_EQ(cut.shape_for(101), 0);
  // Shorter passes have programs of their own, and take no more memory.
  JobSpec job = with_short_passes(1);
  Session with(job, 1);
  EXPECT_NE(with.compiled().at(Task::Pass, false, 1), with.compiled().at(Task::Pass));
  job.cut.short_eighths.clear();
  EXPECT_EQ(with.arena_bytes(Space::Device), Session(job, 1).arena_bytes(Space::Device));
}

// The same samples, each in a block of its own or end to end in one: positions and attention restart at each.
TEST(Packing, PackedOrNotTheLossIsTheSame) {
  for (const std::string family : {"llama", "qwen2_tied"}) {
    JobSpec job = tiny_job(family, std::nullopt, DType::F32);
    job.purpose = Purpose::Evaluate;
    job.cut.micro_batch = 12;
    Session session(job, 1);
    session.load();
    TinyTrainer trainer(session);
    const double apart = trainer.evaluate(tiny_samples());
    trainer.pack_samples(true);
    EXPECT_EQ(trainer.evaluate(tiny_samples()), apart) << family;
  }
}

}  // namespace
}  // namespace snug
