// Ranks of one process: whose error ends them, and what becomes of one that hangs.
#include "cli/launch.h"

#include <gtest/gtest.h>

#include <thread>

#include "expect_error.h"

namespace snug {
namespace {

using namespace std::chrono_literals;

TEST(Launch, TheErrorThatCausedTheOthersIsThrown) {
  for (const int failing : {0, 1, 2})
    EXPECT_TRUE(fails_with<UserError>(
        [&] {
          run_ranks(3, 1, nullptr, [&](int rank, Comm* comm) {
            if (rank == failing) user_error("no such file");
            comm->barrier();
            return 0;
          });
        },
        "no such file"));
}

TEST(Launch, RankZerosResultIsReturned) {
  EXPECT_EQ(run_ranks(3, 1, nullptr, [](int rank, Comm*) { return 7 + rank; }), 7);
  EXPECT_EQ(run_ranks(1, 1, nullptr, [](int, Comm* comm) { return comm ? 1 : 0; }), 0);
}

TEST(LaunchDeathTest, AThreadThatHangsDoesNotHoldTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_ranks(
                  3, 1, nullptr,
                  [](int rank, Comm* comm) {
                    if (rank == 1) std::this_thread::sleep_for(1h);
                    comm->barrier();
                    return 0;
                  },
                  0.5),
              testing::ExitedWithCode(4), "snug: rank 1 has given no sign of life for 0.5 s while others wait for it");
}

TEST(LaunchDeathTest, AnErrorIsSaidThoughAnotherThreadHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_ranks(
                  2, 1, nullptr,
                  [](int rank, Comm*) {
                    if (rank == 0) user_error("no such file");
                    std::this_thread::sleep_for(1h);
                    return 0;
                  },
                  0.5),
              testing::ExitedWithCode(4), "snug: no such file");
}

}  // namespace
}  // namespace snug
