// Ctrl-C in the midst of a product: no thread that computes is disturbed.
#include "cli/interrupt.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace snug {
namespace {

bool blocked(int signal) {
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, nullptr, &now);
  return sigismember(&now, signal) == 1;
}

void wait_until_noted(const InterruptGuard& guard) {
  for (int i = 0; i < 1000 && !guard.interrupted(); i++) usleep(10'000);
}

TEST(Interrupt, ReachesNoThreadThatComputes) {
  for (const int signal : {SIGINT, SIGTERM}) {
    InterruptGuard guard;
    guard.hold();
    bool there = false;
    std::thread([&] { there = blocked(SIGINT) && blocked(SIGTERM); }).join();
    EXPECT_TRUE(there && blocked(SIGINT) && blocked(SIGTERM));
    EXPECT_FALSE(guard.interrupted());
    kill(getpid(), signal);
    wait_until_noted(guard);
    EXPECT_TRUE(guard.interrupted());
  }
  EXPECT_FALSE(blocked(SIGINT) || blocked(SIGTERM));
}

TEST(Interrupt, EndsTheProcessBeforeItIsHeldAndTheSecondTime) {
  EXPECT_EXIT(
      {
        const InterruptGuard guard;
        kill(getpid(), SIGTERM);
        pause();
      },
      testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(
      {
        InterruptGuard guard;
        guard.hold();
        kill(getpid(), SIGINT);
        wait_until_noted(guard);
        kill(getpid(), SIGINT);
        pause();
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace snug
