// The planner's choice: what the user pinned stays, what is open is the fastest that fits.
#include <gtest/gtest.h>

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
  for (const Recompute r : result.tried[*result.chosen].strategy.recompute) EXPECT_EQ(r, Recompute::None);
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
      if (other.relative_time < 0.98 * chosen.relative_time) {
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
  ASSERT_EQ(result.tried.size(), 1u);
  EXPECT_EQ(result.tried[0].cut.passes, 3);
  EXPECT_EQ(result.tried[0].strategy.recompute[1], Recompute::Attention);
  EXPECT_EQ(result.tried[0].strategy.offloaded_blocks, 1);
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
