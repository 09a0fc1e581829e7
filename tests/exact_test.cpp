// The forecast is the allocation: arenas to the byte, in every phase, and nothing after them.
#include <gtest/gtest.h>

#include "backend/cpu/facts.h"
#include "base/rng.h"
#include "count_allocations.h"
#include "plan/forecast.h"
#include "program/replay.h"
#include "program/sync.h"
#include "temp_directory.h"
#include "tiny_model.h"

namespace snug {
namespace {

JobSpec job_with_everything(const std::string& family, bool lora) {
  JobSpec spec = tiny_job(family, lora ? std::optional<std::string>("adapter_init") : std::nullopt, DType::BF16);
  spec.evaluate = true;
  spec.cut.passes = 4;
  spec.strategy.fates = {offloaded({}), fates_of(Recompute::Mlp)};
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
  for (const bool lora : {true, false}) {
    const Compiled compiled = compile(job_with_everything("llama", lora), CpuFacts());
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

}  // namespace
}  // namespace snug
