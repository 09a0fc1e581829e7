// The forecast is the allocation: arenas to the byte, in every phase, and nothing after them.
#include <gtest/gtest.h>

#include "backend/cpu/facts.h"
#include "base/rng.h"
#include "count_allocations.h"
#include "plan/forecast/forecast.h"
#include "program/replay.h"
#include "program/sync.h"
#include "temp_directory.h"
#include "tiny_model.h"

namespace snug {
namespace {

enum class When : uint8_t { AtOnce, Deferred, Speculative };

// Everything that a job of one rank may have. Not at once: with states on the host, gradients on the disk and updates
// in the next step; speculative: only of one group, the others' in the backward.
JobSpec job_with_everything(const std::string& family, bool lora, When when = When::AtOnce) {
  JobSpec spec = tiny_job(family, lora ? std::optional<std::string>("adapter_init") : std::nullopt, DType::BF16);
  spec.evaluate = true;
  spec.cut.passes = 4;
  spec.strategy.activations = {offloaded({}), policy_of(Recompute::Mlp)};
  spec.strategy.defer_updates = when != When::AtOnce;
  spec.strategy.speculate = when == When::Speculative;
  for (GroupPlacement& group : spec.strategy.groups)
    if (when != When::AtOnce) group.states = Space::Host, group.gradients = Space::Disk;
  if (when == When::Speculative) spec.strategy.groups[1].states = Space::Device;
  return spec;
}

TEST(Exact, ArenasHaveTheForecastBytes) {
  for (const bool lora : {true, false}) {
    Session session(job_with_everything("llama", lora), 1);
    const Forecast f = forecast(session.compiled());
    for (const Space space : kSpaces) EXPECT_EQ(session.arena_bytes(space), f.arena_bytes[index(space)]);
    uint64_t classes = 0, fullest_phase = 0;
    for (const Forecast::Class& c : f.classes) classes += c.bytes;
    for (const Forecast::Phase& phase : f.phases)
      fullest_phase = std::max(fullest_phase, phase.bytes[index(Space::Device)]);
    EXPECT_EQ(classes, f.arena_bytes[index(Space::Device)]) << "classes sum to the arena";
    EXPECT_EQ(fullest_phase, f.arena_bytes[index(Space::Device)]) << "some phase reaches the arena's end";
  }
}

// Parts differ in what parameters they hold, and other ranks than the first write no model.
TEST(Exact, RanksTakeTheSameButForHowTheirPartsLie) {
  const std::filesystem::path model = std::filesystem::path(SNUG_FIXTURES) / "configs" / "llama-3-8b";
  for (const Space states : {Space::Device, Space::Host}) {
    JobSpec spec;
    spec.model = read_model_config(model).spec;
    spec.table = full_parameters(spec.model, true);
    spec.sources = find_sources(spec.table, {model, false, 0, std::nullopt});
    spec.cut.ranks = 8;
    spec.strategy = plain_strategy(spec.table, Recompute::Block);
    set_zero_stage(spec.strategy, 3);
    for (GroupPlacement& group : spec.strategy.groups) group.states = states;
    std::vector<uint64_t> together;
    for (const int rank : {0, 1, 4, 7}) {
      spec.rank = rank;
      const Compiled compiled = compile(spec, CpuFacts());
      together.push_back(compiled.plan.reserved_bytes[index(Space::Device)] +
                         compiled.plan.reserved_bytes[index(Space::Host)]);
    }
    const auto [least, most] = std::ranges::minmax(together);
    EXPECT_LE(most - least, least / 100) << fmt::format("{}", fmt::join(together, " "));
  }
}

TEST(Exact, PackingIsWithinTwoPercentOfLiveBytes) {
  for (const bool lora : {true, false})
    for (const std::string family : {"llama", "qwen2", "llama3"}) {
      const Compiled compiled = compile(job_with_everything(family, lora), CpuFacts());
      for (const Space space : kSpaces) {
        const uint64_t reserved = compiled.plan.reserved_bytes[index(space)],
                       live = compiled.plan.live_peak_bytes[index(space)];
        EXPECT_LE(reserved, live + live / 50) << family << " " << name(space);
      }
    }
}

// What is allocated on the heap after the tenth step is what was after the second.
TEST(Exact, TheHeapDoesNotGrowAfterTheSecondStep) {
  Session session(job_with_everything("qwen2", false), 1);
  session.load();
  TinyTrainer trainer(session);
  const auto samples = step_samples(tiny_samples(), 1, 4);
  int64_t after_second = 0;
  for (int64_t number = 1; number <= 10; number++) {
    trainer.step(samples, number, 1e-3);
    if (number == 2) after_second = live_allocations();
  }
  EXPECT_EQ(live_allocations(), after_second);
}

// What a run goes through, in any order that its programs allow.
TEST(Exact, RandomWalksOverAllProgramsStayCleanUnderTheReplay) {
  for (const auto& [lora, when] : {std::pair(true, When::AtOnce),
                                   {false, When::AtOnce},
                                   {true, When::Deferred},
                                   {false, When::Deferred},
                                   {true, When::Speculative},
                                   {false, When::Speculative}}) {
    const Compiled compiled = compile(job_with_everything("llama", lora, when), CpuFacts());
    EXPECT_EQ(compiled.has(Task::Flush), when != When::AtOnce);
    EXPECT_EQ(compiled.has(Task::Reapply), when == When::Speculative);
    Random random(lora ? 1 : 2, RandomPurpose::DataOrder);
    for (uint64_t walk = 0; walk < 20; walk++) {
      std::vector<ProgramId> sequence{compiled.at(Task::Load)};
      while (sequence.size() < 24 && !compiled.set.programs[sequence.back()].next.empty()) {
        const auto& next = compiled.set.programs[sequence.back()].next;
        sequence.push_back(next[random.below(walk * 100 + sequence.size(), next.size())]);
      }
      const ReplayResult result = replay(compiled.set, compiled.plan, sequence, walk);
      EXPECT_EQ(result.corrupted_reads, 0) << result.first;
    }
  }
}

// sync() emits no wait that another implies, so each one matters.
TEST(Exact, EveryDroppedWaitIsCaught) {
  Compiled compiled = compile(job_with_everything("qwen2_tied", false), CpuFacts());
  int64_t dropped = 0;
  for (Program& program : compiled.set.programs)
    for (Op& op : program.ops)
      for (size_t w = 0; w < op.waits.size(); w++, dropped++) {
        const std::vector<Wait> all = op.waits;
        op.waits.erase(op.waits.begin() + static_cast<std::ptrdiff_t>(w));
        EXPECT_THROW(verify(compiled.set, compiled.plan), InternalError) << op.site << ", wait " << w;
        op.waits = all;
      }
  EXPECT_GT(dropped, 50);
  verify(compiled.set, compiled.plan);
}

// The same by running tags, on the programs of two ranks under every stage: an order that lanes allow without the wait,
// and in which something is read that was written over.
TEST(Exact, ADroppedWaitOfAnyStageGoesWrongUnderTheReplay) {
  constexpr size_t kWaits = 48;
  constexpr uint64_t kOrders = 100;
  for (const int stage : {0, 1, 2, 3}) {
    JobSpec spec = job_with_everything("llama", stage % 2 == 0);
    spec.cut.ranks = 2;
    spec.cut.micro_batch = 1;
    spec.strategy.defer_updates = stage >= 2;
    set_zero_stage(spec.strategy, stage);
    for (GroupPlacement& group : spec.strategy.groups) group.states = group.gradients = Space::Host;
    Compiled compiled = compile(spec, CpuFacts());
    std::vector<std::pair<ProgramId, std::pair<OpId, size_t>>> waits;
    for (const Task task : {compiled.passes[0], Task::Update})
      for (OpId op = 0; op < compiled.set.programs[compiled.at(task)].ops.size(); op++)
        for (size_t w = 0; w < compiled.set.programs[compiled.at(task)].ops[op].waits.size(); w++)
          waits.push_back({compiled.at(task), {op, w}});
    size_t tried = 0, found = 0;
    for (size_t i = 0; i < waits.size(); i += waits.size() / kWaits + 1, tried++) {
      const auto& [program, place] = waits[i];
      Op& op = compiled.set.programs[program].ops[place.first];
      const std::vector<Wait> all = op.waits;
      op.waits.erase(op.waits.begin() + static_cast<std::ptrdiff_t>(place.second));
      bool wrong = false;
      for (uint64_t order = 0; order < kOrders && !wrong; order++) {
        std::vector<ProgramId> sequence{compiled.at(order % 2 == 0 ? Task::Load : Task::Restore)};
        for (int step = 0; step < 3; step++) {
          std::vector<Task> tasks = compiled.passes;
          if (spec.strategy.defer_updates && step == 1) tasks[0] = pending(tasks[0]);
          tasks.push_back(Task::Update);
          if (spec.strategy.defer_updates && step != 0) tasks.push_back(Task::Flush);
          if (step == 1) tasks.push_back(Task::Save);
          for (const Task task : tasks) sequence.push_back(compiled.at(task));
        }
        wrong = replay(compiled.set, compiled.plan, sequence, order, {2, 1, 0}).corrupted_reads > 0;
      }
      found += wrong;
      op.waits = all;
    }
    EXPECT_GE(found * 10, tried * 9) << found << " of " << tried << " under stage " << stage;
  }
}

}  // namespace
}  // namespace snug
