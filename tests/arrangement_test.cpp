// Every arrangement of bytes and ranks: at equal ranks the same bits, whatever is sharded, gathered, recomputed or
// offloaded; over ranks the same up to the order of sums; arenas as forecast on each rank.
#include <gtest/gtest.h>

#include <thread>

#include "backend/cpu/facts.h"
#include "base/rng.h"
#include "comm/threads.h"
#include "plan/forecast.h"
#include "program/replay.h"
#include "temp_directory.h"
#include "tiny_model.h"
#include "train/checkpoint.h"

namespace snug {
namespace {

constexpr int64_t kSteps = 2;

struct Arrangement {
  int ranks = 1, replicas = 1, zero = 0;
  int64_t passes = 1;
  Recompute recompute = Recompute::None;
  uint8_t offload = 1;  // of what is kept of blocks, where `inputs` are elsewhere: bits for attention, residual, ...
  Space states = Space::Device, gradients = Space::Device, weights = Space::Device, inputs = Space::Device;
  int share = 2;  // of two: how many halves of the groups are placed elsewhere, and sharded at stage 3
  bool layer_major = false, deferred = false;
  LaneMode lanes = LaneMode::Inline;
};

std::string to_string(const Arrangement& a) {
  return fmt::format(
      "{} ranks in {} replicas, zero {}, {} passes, recompute {}, states on {}, gradients on {}, weights "
      "on {}, inputs on {} ({}), {} halves, {} major, {}{}",
      a.ranks, a.replicas, a.zero, a.passes, name(a.recompute), name(a.states), name(a.gradients), name(a.weights),
      name(a.inputs), a.offload, a.share, a.layer_major ? "layer" : "pass", a.deferred ? "deferred, " : "",
      a.lanes == LaneMode::Inline ? "inline" : "lanes");
}

constexpr int64_t kBatch = 8;  // blocks a step

JobSpec arranged(JobSpec spec, const Arrangement& a, int rank) {
  spec.cut.ranks = a.ranks;
  spec.cut.passes = a.passes;
  spec.cut.micro_batch = kBatch / a.ranks / a.passes;
  spec.rank = rank;
  spec.evaluate = true;
  spec.strategy = plain_strategy(spec.table.blocks.size(), a.recompute);
  spec.strategy.replicas = a.replicas;
  spec.strategy.layer_major = a.layer_major;
  spec.strategy.defer_updates = a.deferred;
  set_zero_stage(spec.strategy, a.zero);
  const size_t groups = spec.strategy.groups.size(), first = groups - groups * static_cast<size_t>(a.share) / 2;
  for (size_t g = first; g < groups; g++) {
    spec.strategy.groups[g].states = a.states;
    spec.strategy.groups[g].gradients = a.gradients;
    spec.strategy.groups[g].weights = a.weights;
  }
  for (size_t g = 0; g < first; g++) spec.strategy.groups[g].shard_weights = false;
  for (size_t b = 0; b < spec.strategy.fates.size() && a.inputs != Space::Device; b++) {
    Fates& fates = spec.strategy.fates[b];
    const Fates all = offloaded(fates);
    fates.input = Fate::Offload;
    if (a.offload & 1) fates.attention = all.attention;
    if (a.offload & 2) fates.residual = all.residual;
    if (a.offload & 4) fates.mlp = all.mlp;
    if (a.offload & 8) fates.adapter = all.adapter;
    if (a.offload & 16 && b % 2 == 0) fates.residual = fates.adapter = Fate::Recompute;
  }
  spec.strategy.offloaded_to = a.inputs == Space::Device ? Space::Host : a.inputs;
  return spec;
}

// What a run leaves: numbers of each step, and every trained parameter, put together from what ranks own.
struct Outcome {
  std::vector<StepResult> steps;
  double evaluation = 0;
  std::vector<std::vector<float>> weights;
  bool operator==(const Outcome&) const = default;
};

// Runs `work` on every rank with a session of its own.
void on_ranks(const JobSpec& job, const Arrangement& a, const std::function<void(Session&)>& work) {
  auto run = [&](int rank, Comm* comm) {
    Session session(arranged(job, a, rank), 1, a.lanes, comm);
    work(session);
  };
  if (a.ranks == 1) return run(0, nullptr);
  const auto comms = thread_ranks(a.ranks, a.replicas);
  std::vector<std::exception_ptr> errors(comms.size());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < a.ranks; rank++)
      threads.emplace_back([&, rank] {
        const auto r = static_cast<size_t>(rank);
        try {
          run(rank, comms[r].get());
        } catch (const std::exception& error) {
          errors[r] = std::current_exception();
          comms[r]->leave(error.what());
        }
      });
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

void take_weights(Session& session, Outcome& outcome) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const ParamTable& table = session.spec().table;
  outcome.weights.resize(table.params.size());
  for (size_t i = 0; i < table.params.size(); i++) {
    if (!table.params[i].trainable) continue;
    outcome.weights[i].resize(static_cast<size_t>(table.params[i].shape.count()));
    const Compiled::Owned& owned = session.compiled().owned[i];
    if (owned.span.count() == 0 || session.compiled().set.buffers[owned.weight.buffer].space == Space::Disk) continue;
    std::ranges::copy(values(session, owned.weight), outcome.weights[i].begin() + owned.span.begin);
  }
}

// The samples of a rank in a pass are those of its blocks in the step: pass after pass, rank after rank.
void train_steps(Session& session, int64_t first, int64_t last, Outcome& outcome) {
  TinyTrainer trainer(session);
  const auto samples = tiny_samples();
  for (int64_t number = first; number <= last; number++) {
    const StepResult result = trainer.step(step_samples(samples, number, kBatch), number, 1e-2);
    if (session.rank() == 0) outcome.steps.push_back(result);
  }
}

Outcome train(const JobSpec& job, const Arrangement& a) {
  Outcome outcome;
  on_ranks(job, a, [&](Session& session) {
    session.load();
    train_steps(session, 1, kSteps, outcome);
    TinyTrainer trainer(session);
    const auto samples = step_samples(tiny_samples(), 1, static_cast<size_t>(session.spec().cut.micro_batch));
    const double loss = trainer.evaluate(samples);
    if (session.rank() == 0) outcome.evaluation = loss;
    take_weights(session, outcome);
    const Forecast f = forecast(session.compiled());
    for (const Space space : kSpaces) EXPECT_EQ(session.arena_bytes(space), f.arena_bytes[index(space)]);
  });
  return outcome;
}

Space space_of(uint64_t draw) { return std::array{Space::Device, Space::Host, Space::Disk}[draw % 3]; }

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
  a.offload = static_cast<uint8_t>(draw(11, 32));
  if (base.ranks % 2 == 0 && draw(8, 3) == 0) a.replicas = 2;
  if (base.ranks == 4 && draw(9, 4) == 0) a.replicas = 4;
  return a;
}

struct Case {
  std::string family;
  bool lora;
  DType compute;
  int64_t passes;
  BaseFormat base = BaseFormat::Plain;
};

struct Arrangements : testing::TestWithParam<Case> {
  JobSpec job() const {
    const auto& [family, lora, compute, passes, base] = GetParam();
    JobSpec spec = tiny_job(family, lora ? std::optional<std::string>("adapter_init") : std::nullopt, compute);
    spec.numerics.base_format = base;
    return spec;
  }
};

// Weights on the disk are compared through a checkpoint elsewhere; here only those that have an address.
bool same(const Outcome& a, const Outcome& b, bool weights) {
  return a.steps == b.steps && a.evaluation == b.evaluation && (!weights || a.weights == b.weights);
}

TEST_P(Arrangements, ChangeNoBitAtEqualRanks) {
  const Random random(11, RandomPurpose::DataOrder, static_cast<uint32_t>(GetParam().passes + 8 * GetParam().lora));
  Outcome of_one_rank;
  for (const int ranks : {1, 2, 4}) {
    Arrangement plain;
    plain.ranks = ranks;
    plain.passes = GetParam().passes;
    const Outcome expected = train(job(), plain);
    for (const int stage : {0, 1, 2, 3}) {
      Arrangement a = plain;
      a.zero = stage;
      EXPECT_TRUE(same(train(job(), a), expected, true)) << to_string(a);
    }
    for (uint64_t i = 0; i < 6; i++) {
      const Arrangement a = drawn(plain, random, 8 * static_cast<uint64_t>(ranks) + i);
      EXPECT_TRUE(same(train(job(), a), expected, a.weights != Space::Disk || a.share == 0)) << to_string(a);
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
  for (const int ranks : {1, 2})
    for (const bool every_step : {false, true}) {
      JobSpec spec = job();
      spec.numerics.reduce_every_step = every_step;
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
        EXPECT_TRUE(same(train(spec, a), expected, true)) << to_string(a) << (every_step ? ", reduced every step" : "");
      }
      Outcome other;
      if (every_step) other = train(job(), plain);
      for (size_t step = 0; every_step && step < kSteps; step++)
        EXPECT_NEAR(other.steps[step].loss, expected.steps[step].loss, 1e-3 * expected.steps[step].loss);
    }
}

// Saved by some ranks under one strategy, restored by others under another.
TEST_P(Arrangements, ACheckpointGoesOnUnderAnyOther) {
  Arrangement two;
  two.ranks = 2;
  two.zero = 2;
  two.passes = GetParam().passes;
  const TempDirectory directory;
  Outcome expected;
  on_ranks(job(), two, [&](Session& session) {
    session.load();
    Outcome ignored;
    train_steps(session, 1, 1, ignored);
    std::filesystem::create_directories(directory.path() / "saved");
    session.barrier();
    session.write(Task::Save, directory.path() / "saved");
    session.barrier();
    train_steps(session, 2, 3, expected);
    take_weights(session, expected);
  });
  for (const auto& [ranks, replicas, stage, space] :
       {std::tuple(2, 1, 3, Space::Host), std::tuple(2, 2, 0, Space::Disk), std::tuple(1, 1, 0, Space::Device),
        std::tuple(4, 2, 3, Space::Host)}) {
    Arrangement other = two;
    other.ranks = ranks;
    other.replicas = replicas;
    other.zero = stage;
    other.states = space;
    JobSpec spec = job();
    spec.saved = find_saved_state(directory.path() / "saved");
    Outcome outcome;
    on_ranks(spec, other, [&](Session& session) {
      session.load();
      session.restore(directory.path() / "saved");
      train_steps(session, 2, 3, outcome);
      take_weights(session, outcome);
    });
    if (ranks == 2) {
      EXPECT_TRUE(same(outcome, expected, true)) << to_string(other);
    } else {
      EXPECT_NEAR(outcome.steps[0].loss, expected.steps[0].loss, 1e-3 * expected.steps[0].loss) << to_string(other);
    }
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
      const Arrangement a = drawn(base, random, i);
      const Compiled compiled = compile(arranged(job(), a, ranks - 1), CpuFacts());
      std::vector<ProgramId> sequence{compiled.at(Task::Load)};
      for (int step = 0; step < 3; step++) {
        std::vector<Task> tasks = compiled.passes;
        if (a.deferred && step == 1) tasks[0] = pending(tasks[0]);
        tasks.push_back(Task::Update);
        if (a.deferred && step != 0) tasks.push_back(Task::Flush);
        if (!a.deferred || step != 0) tasks.insert(tasks.end(), {Task::Evaluate, Task::Save});
        for (const Task task : tasks) sequence.push_back(compiled.at(task));
      }
      for (uint64_t seed = 0; seed < 3; seed++) {
        const ReplayResult result = replay(compiled.set, compiled.plan, sequence, seed);
        EXPECT_EQ(result.corrupted_reads, 0) << to_string(a) << ": " << result.first;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, Arrangements,
                         testing::Values(Case{"llama", true, DType::BF16, 2}, Case{"llama", false, DType::F32, 1},
                                         Case{"qwen2", false, DType::BF16, 2}, Case{"qwen2_tied", false, DType::F32, 2},
                                         Case{"qwen2", true, DType::F32, 1},
                                         Case{"llama", true, DType::BF16, 1, BaseFormat::Int8},
                                         Case{"llama", true, DType::F32, 2, BaseFormat::Nf4},
                                         Case{"qwen2", true, DType::BF16, 1, BaseFormat::Fp8}));

}  // namespace
}  // namespace snug
