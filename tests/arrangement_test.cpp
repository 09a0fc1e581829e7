// Every arrangement of bytes and ranks: at equal ranks the same bits, whatever is sharded, gathered, recomputed or
// offloaded; over ranks the same up to the order of sums; arenas as forecast on each rank.
#include <gtest/gtest.h>

#include "arranged.h"
#include "backend/cpu/facts.h"
#include "base/rng.h"
#include "program/replay.h"
#include "temp_directory.h"

namespace snug {
namespace {

Arrangement drawn(const Arrangement& base, const Random& random, uint64_t i) {
  auto draw = [&](uint64_t what, uint64_t bound) { return random.below(16 * i + what, bound); };
  Arrangement a = base;
  a.zero = static_cast<int>(draw(0, 4));
  a.recompute = static_cast<Recompute>(draw(1, 4));
  a.states = space_of(draw(2, 3));
  a.gradients = space_of(draw(3, 3));
  a.weights = space_of(draw(4, 3));
  a.inputs = space_of(draw(5, 3));
  a.share = static_cast<int>(draw(6, 3));
  a.lanes = draw(7, 4) == 0 ? LaneMode::Threads : LaneMode::Inline;
  a.layer_major = draw(10, 2) == 0;
  a.deferred = draw(12, 2) == 0;
  a.speculative = draw(13, 2) == 0;
  a.offload = static_cast<uint8_t>(draw(11, 32));
  if (base.ranks % 2 == 0 && draw(8, 3) == 0) a.replicas = 2;
  if (base.ranks == 4 && draw(9, 4) == 0) a.replicas = 4;
  return a;
}

std::vector<int> up_to(int most) {
  std::vector<int> counts;
  for (int ranks = 1; ranks <= std::min(most, kMostRanks); ranks *= 2) counts.push_back(ranks);
  return counts;
}

struct Arrangements : testing::TestWithParam<TinyCase> {
  JobSpec job() const { return GetParam().job(); }
};

// Where nothing is clipped no update waits for the norm.
TEST_P(Arrangements, UpdatesInTheBackwardChangeNoBit) {
  const Random random(12, RandomPurpose::DataOrder, static_cast<uint32_t>(GetParam().passes + 8 * GetParam().lora));
  JobSpec unclipped = job();
  unclipped.numerics.max_grad_norm = 0;
  for (const int ranks : up_to(4)) {
    Arrangement plain;
    plain.ranks = ranks;
    plain.passes = GetParam().passes;
    const Outcome expected = train(unclipped, plain);
    for (uint64_t i = 0; i < 5; i++) {
      Arrangement a = i == 0 ? plain : drawn(plain, random, 8 * static_cast<uint64_t>(ranks) + i);
      if (i < 3) a.zero = std::max(2, a.zero);
      a.in_backward = true;
      a.speculative = false;
      EXPECT_TRUE(train(unclipped, a) == expected) << to_string(a);
      const Compiled compiled = compile(arranged(unclipped, a, 0), *usual_ground().facts());
      EXPECT_EQ(compiled.update.in_backward, a.zero >= 2) << to_string(a);
      EXPECT_FALSE(compiled.update.in_backward && (compiled.has(Task::Reapply) || compiled.has(Task::Flush)))
          << to_string(a);
    }
  }
}

TEST_P(Arrangements, ChangeNoBitAtEqualRanks) {
  const Random random(11, RandomPurpose::DataOrder, static_cast<uint32_t>(GetParam().passes + 8 * GetParam().lora));
  Outcome of_one_rank;
  for (const int ranks : up_to(4)) {
    Arrangement plain;
    plain.ranks = ranks;
    plain.passes = GetParam().passes;
    const Outcome expected = train(job(), plain);
    for (const int stage : {0, 1, 2, 3}) {
      Arrangement a = plain;
      a.zero = stage;
      EXPECT_TRUE(train(job(), a) == expected) << to_string(a);
    }
    for (uint64_t i = 0; i < 6; i++) {
      const Arrangement a = drawn(plain, random, 8 * static_cast<uint64_t>(ranks) + i);
      EXPECT_TRUE(train(job(), a) == expected) << to_string(a);
    }
    if (ranks == 1) of_one_rank = expected;
    for (size_t step = 0; step < kSteps; step++) {
      const double tolerance = GetParam().compute == DType::F32 ? 1e-5 : 2e-3;
      EXPECT_NEAR(expected.steps[step].loss, of_one_rank.steps[step].loss, tolerance * expected.steps[step].loss);
      EXPECT_NEAR(expected.steps[step].norm, of_one_rank.steps[step].norm, 10 * tolerance * expected.steps[step].norm);
    }
  }
}

// With a middle pass, and one more; and where ranks are summed once a step, which is another order of sums.
TEST_P(Arrangements, LayerMajorIsPassMajor) {
  for (const int ranks : up_to(2))
    for (const bool every_step : {false, true}) {
      JobSpec spec = job();
      spec.numerics.reduce_once_per_step = every_step;
      Arrangement plain;
      plain.ranks = ranks;
      plain.passes = 4;
      const Outcome expected = train(spec, plain);
      for (const Space space : {Space::Device, Space::Host}) {
        Arrangement a = plain;
        a.layer_major = true;
        a.zero = 3;
        a.recompute = Recompute::Block;
        a.gradients = a.inputs = a.weights = a.states = space;
        EXPECT_TRUE(train(spec, a) == expected) << to_string(a) << (every_step ? ", reduced every step" : "");
      }
      Outcome other;
      if (every_step) other = train(job(), plain);
      for (size_t step = 0; every_step && step < kSteps; step++)
        EXPECT_NEAR(other.steps[step].loss, expected.steps[step].loss, 1e-3 * expected.steps[step].loss);
    }
}

// Whether it leaves weights and state as so many steps before it did.
bool after_a_step_that_is_not_finite(const JobSpec& spec, const Arrangement& a, int64_t steps) {
  std::array<Outcome, 2> outcomes;
  for (const bool more : {false, true}) {
    const auto work = [&](Session& session) {
      session.load();
      Outcome passed;
      train_steps(session, 1, steps, passed);
      TinyTrainer trainer(session);
      trainer.scale(std::numeric_limits<double>::quiet_NaN());
      if (more) trainer.step(step_samples(samples_of(session.spec()), steps + 1, kBatch), steps + 1, 1e-2);
      take_saved(session, outcomes[more]);
    };
    on_ranks(spec, a, work);
  }
  return outcomes[0].saved == outcomes[1].saved;
}

// The clip factor is 1 in some steps and not in others: what was done as if it always were is done again where it was
// not, whether that is before the next step, an evaluation, or a checkpoint; and a step that is not finite leaves
// weights and state as they were, whichever place they are in.
TEST_P(Arrangements, SpeculatingThatNothingIsClippedChangesNoBit) {
  for (const int ranks : up_to(2)) {
    JobSpec spec = job();
    Arrangement plain;
    plain.ranks = ranks;
    plain.passes = GetParam().passes;
    spec.numerics.max_grad_norm = 0;
    const Outcome unclipped = train(spec, plain);
    for (const bool clipped : {true, false}) {  // one of the first two steps, or neither
      const auto [least, most] = std::minmax(unclipped.steps[0].norm, unclipped.steps[1].norm);
      spec.numerics.max_grad_norm = static_cast<float>(clipped ? std::midpoint(least, most) : 1.01 * most);
      const Outcome expected = train(spec, plain);
      for (const bool other : {false, true}) {
        Arrangement a = plain;
        a.speculative = true;
        a.states = other ? Space::Disk : Space::Host;
        a.weights = other ? Space::Host : Space::Device;
        a.share = other ? 1 : 2;
        a.zero = other ? 3 : 2;
        a.deferred = a.layer_major = other;
        a.lanes = other ? LaneMode::Threads : LaneMode::Inline;
        EXPECT_TRUE(train(spec, a) == expected) << to_string(a) << ", at most " << spec.numerics.max_grad_norm;
        const auto count_reapplied = [&](Session& session) {
          session.load();
          Outcome two;
          train_steps(session, 1, 2, two);
          take_saved(session, two);
          EXPECT_EQ(session.reapplied_steps(), clipped ? 1 : 0);
        };
        on_ranks(spec, a, count_reapplied);
        for (const int64_t steps : {1, 2}) EXPECT_TRUE(after_a_step_that_is_not_finite(spec, a, steps)) << steps;
      }
    }
  }
}

#ifndef SNUG_TESTS_ON_CUDA
// Saved by some ranks under one strategy, restored by others under another.
TEST_P(Arrangements, ACheckpointGoesOnUnderAnyOther) {
  Arrangement two;
  two.ranks = 2;
  two.zero = 2;
  two.passes = GetParam().passes;
  const TempDirectory run;
  const Halves expected = halves(Begin::Fresh, run.path(), job(), two);
  for (const auto& [ranks, replicas, stage, space] :
       {std::tuple(2, 1, 3, Space::Host), std::tuple(2, 2, 0, Space::Disk), std::tuple(1, 1, 0, Space::Device),
        std::tuple(4, 2, 3, Space::Host)}) {
    Arrangement other = two;
    other.ranks = ranks;
    other.replicas = replicas;
    other.zero = stage;
    other.states = space;
    const Halves resumed = halves(Begin::Resumed, run.path(), job(), other);
    expect_resumed(resumed, expected, ranks == two.ranks, 1e-3, to_string(other));
  }
}

// What each rank runs is clean under orders that its lanes and waits allow.
TEST_P(Arrangements, StayCleanUnderTheReplay) {
  const Random random(12, RandomPurpose::DataOrder);
  for (const int ranks : {1, 4})
    for (uint64_t i = 0; i < 4; i++) {
      Arrangement base;
      base.ranks = ranks;
      base.passes = GetParam().passes;
      Arrangement a = drawn(base, random, i);
      if (i == 3) a.states = Space::Host, a.speculative = true, a.share = 2, a.zero = std::max(2, a.zero);
      const Compiled compiled = compile(arranged(job(), a, ranks - 1), CpuFacts());
      const bool deferred = compiled.has(Task::Flush);
      EXPECT_EQ(compiled.has(Task::Reapply), a.speculative && a.share > 0 && a.states != Space::Device && a.zero >= 2);
      std::vector<ProgramId> sequence{compiled.at(Task::Load)};
      bool turned = false;
      auto add = [&](Task task) { sequence.push_back(compiled.at(task, turned)); };
      for (int step = 0; step < 3; step++) {
        std::vector<Task> tasks = compiled.passes;
        if (deferred && step == 1) tasks[0] = pending(tasks[0]);
        for (const Task task : tasks) add(task);
        add(Task::Update);
        if (compiled.has(Task::Reapply) && step != 1) add(Task::Reapply);
        turned = compiled.has(Task::Reapply) && !turned;
        if (deferred && step != 0) add(Task::Flush);
        if (deferred && step == 0) continue;
        if (compiled.has(Task::ToAverage)) add(Task::ToAverage);
        add(Task::Evaluate);
        add(Task::Save);
        if (compiled.has(Task::FromAverage)) add(Task::FromAverage);
      }
      for (uint64_t seed = 0; seed < 3; seed++) {
        const ReplayResult result = replay(compiled.set, compiled.plan, sequence, seed);
        EXPECT_EQ(result.corrupted_reads, 0) << to_string(a) << ": " << result.first;
      }
    }
}

#endif

constexpr Optimizer kScheduleFree = Optimizer::ScheduleFreeAdamW;

INSTANTIATE_TEST_SUITE_P(
    Cases, Arrangements,
    testing::Values(
        TinyCase{"llama", true, DType::BF16, 2}, TinyCase{"llama", false, DType::F32, 1},
        TinyCase{"qwen2", false, DType::BF16, 2}, TinyCase{"qwen2_tied", false, DType::F32, 2},
        TinyCase{"qwen2", true, DType::F32, 1}, TinyCase{"llama", true, DType::BF16, 1, BaseFormat::Int8},
        TinyCase{"llama", true, DType::F32, 2, BaseFormat::Nf4},
        TinyCase{"qwen2", true, DType::BF16, 1, BaseFormat::Fp8},
        TinyCase{"llama16", true, DType::BF16, 2, BaseFormat::Fp8, true},
        TinyCase{"llama16", false, DType::BF16, 2, BaseFormat::Plain, true},
        TinyCase{"granite", true, DType::BF16, 2, BaseFormat::Int8}, TinyCase{"granite", false, DType::F32, 1},
        TinyCase{"gemma3", true, DType::BF16, 2}, TinyCase{"nemotron", false, DType::BF16, 2},
        TinyCase{"gemma3", false, DType::F32, 2}, TinyCase{"gemma2", false, DType::BF16, 2},
        TinyCase{"cohere", true, DType::BF16, 2, BaseFormat::Nf4}, TinyCase{"hunyuan", true, DType::F32, 2},
        TinyCase{"cohere_norms", false, DType::BF16, 2}, TinyCase{"stablelm_norms", false, DType::F32, 2},
        TinyCase{"starcoder2", true, DType::BF16, 2}, TinyCase{"helium", false, DType::BF16, 2},
        TinyCase{"cwm", false, DType::F32, 2}, TinyCase{"../vision/qwen2_vl", false, DType::F32, 2},
        TinyCase{"../vision/qwen2_5_vl", false, DType::BF16, 2},
        TinyCase{"../vision/qwen2_vl", true, DType::BF16, 1, BaseFormat::Int8},
        TinyCase{"../vision/qwen2_5_vl", true, DType::F32, 2},
        TinyCase{"qwen2", true, DType::BF16, 2, BaseFormat::Plain, false, 0.0},
        TinyCase{"llama", true, DType::F32, 2, BaseFormat::Nf4, false, 0.25},
        TinyCase{"granite", true, DType::BF16, 1, BaseFormat::Int8, false, 0.0},
        TinyCase{"llama16", true, DType::BF16, 2, BaseFormat::Fp8, true, 0.0},
        TinyCase{"../vision/minicpmv", false, DType::F32, 2}, TinyCase{"../vision/minicpmv", false, DType::BF16, 2},
        TinyCase{"../vision/minicpmv", true, DType::BF16, 1, BaseFormat::Int8},
        TinyCase{"../vision/omnilmm", false, DType::F32, 2}, TinyCase{"../vision/omnilmm", false, DType::BF16, 2},
        TinyCase{"../vision/omnilmm", true, DType::BF16, 1, BaseFormat::Int8},
        TinyCase{.family = "../vision/qwen2_5_vl",
                 .lora = true,
                 .compute = DType::BF16,
                 .passes = 2,
                 .base = BaseFormat::Nf4,
                 .given_embeddings = true},
        TinyCase{
            .family = "../vision/minicpmv", .lora = true, .compute = DType::F32, .passes = 1, .given_embeddings = true},
        TinyCase{"qwen2", false, DType::BF16, 2, BaseFormat::Plain, false, std::nullopt, kScheduleFree},
        TinyCase{"llama", true, DType::F32, 2, BaseFormat::Plain, false, std::nullopt, kScheduleFree},
        TinyCase{"granite", true, DType::BF16, 1, BaseFormat::Int8, false, 0.25, kScheduleFree}));

#ifndef SNUG_TESTS_ON_CUDA

// Returns every tiny model there is, so that no family can come without its sample of arrangements.
std::vector<std::string> tiny_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(models()))
    if (entry.is_directory()) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

struct EveryModel : testing::TestWithParam<std::string> {};

TEST_P(EveryModel, HasTheSameBitsUnderASampleOfArrangements) {
  const std::vector<std::string> all = tiny_models();
  const auto place = static_cast<uint32_t>(std::ranges::find(all, GetParam()) - all.begin());
  const Random random(14, RandomPurpose::DataOrder, place);
  for (const bool lora : {false, true}) {
    const TinyCase tiny{GetParam(), lora, lora ? DType::BF16 : DType::F32, 2};
    for (const int ranks : {1, 2}) {
      Arrangement plain;
      plain.ranks = ranks;
      plain.passes = tiny.passes;
      const Outcome expected = train(tiny.job(), plain);
      for (uint64_t i = 0; i < 3; i++) {
        Arrangement a = drawn(plain, random, 8 * static_cast<uint64_t>(ranks) + i);
        if (i == 0) a.zero = 3;
        EXPECT_TRUE(train(tiny.job(), a) == expected) << (lora ? "lora" : "full") << ", " << to_string(a);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, testing::ValuesIn(tiny_models()),
                         [](const auto& info) { return info.param; });

#endif

}  // namespace
}  // namespace snug
