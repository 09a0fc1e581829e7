// What a run warns of, and that it does so once.
#include "train/run_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace snug {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StepMetrics step(int64_t number, double loss, double seconds) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = loss;
  metrics.step_seconds = seconds;
  return metrics;
}

// Returns the warnings of steps of these losses, and whether samples may be the reason of all of them.
std::vector<std::string> warnings_of(const std::vector<double>& losses) {
  RunWatch watch({}, 2);
  std::vector<std::string> found;
  int64_t number = 0;
  for (const double loss : losses)
    for (const Warning& warning : watch.look_at(step(++number, loss, 1), 2)) {
      found.push_back(warning.message);
      EXPECT_TRUE(warning.of_samples);
    }
  return found;
}

// Returns the warnings of fifteen steps, the first two of which take 9 s.
std::vector<std::string> warnings_at(RunWatch watch, double seconds, double busy_seconds) {
  std::vector<std::string> found;
  for (int64_t number = 1; number <= 15; number++)
    for (const Warning& warning : watch.look_at(step(number, 1, number <= 2 ? 9 : seconds), busy_seconds)) {
      found.push_back(warning.message);
      EXPECT_FALSE(warning.of_samples);
    }
  return found;
}

TEST(RunWatch, ALossThatLeapsIsSaidOnce) {
  std::vector<double> losses(20, 1.5);
  losses.back() = 1.6;
  losses.push_back(2.0);
  EXPECT_THAT(warnings_of(losses), IsEmpty()) << "a third more";
  losses.back() = 2.5;
  losses.push_back(9);
  EXPECT_THAT(warnings_of(losses),
              ElementsAre("step 21: the loss leapt to 2.5000, where the median of the 20 steps before is 1.5000"));
  losses.erase(losses.begin());
  EXPECT_THAT(warnings_of(losses),
              ElementsAre("step 21: the loss leapt to 9.0000, where the median of the 20 steps before is 1.5000"))
      << "and not after 19 steps";
}

TEST(RunWatch, StepsSlowerThanThePlanAreSaidOnceAndWhy) {
  EXPECT_THAT(warnings_at(RunWatch(1.0, 2), 1.2, 2.4), IsEmpty());
  EXPECT_THAT(warnings_at(RunWatch({}, 2), 5, 10), IsEmpty()) << "no forecast";
  EXPECT_THAT(warnings_at(RunWatch(0.001, 2), 0.02, 0.02), IsEmpty()) << "milliseconds";
  EXPECT_THAT(
      warnings_at(RunWatch(1.0, 2), 1.5, 1.5),
      ElementsAre("steps 3 to 12 took 1.5 s, 1.50 times the 1 s of the plan: the threads ran 50 % of that time: "
                  "other processes have their cores, or they wait for a disk"));
  const std::string otherwise =
      "steps 3 to 12 took 1.5 s, 1.50 times the 1 s of the plan: --trace FILE shows what steps of a run wait for, and "
      "'snug "
      "explain' compares it with the plan";
  EXPECT_THAT(warnings_at(RunWatch(1.0, 2), 1.5, 2.9), ElementsAre(otherwise));
  EXPECT_THAT(warnings_at(RunWatch(1.0, 0), 1.5, 0.1), ElementsAre(otherwise));
}

}  // namespace
}  // namespace snug
