// Ctrl-C in the midst of a product: the handler leaves the stack of the thread alone.
#include "cli/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace snug {
namespace {

TEST(Interrupt, IsNotedOnAStackOfItsOwn) {
  stack_t own{};
  {
    const InterruptGuard guard;
    for (const int signal : {SIGINT, SIGTERM}) {
      struct sigaction action {};
      sigaction(signal, nullptr, &action);
      EXPECT_TRUE(action.sa_flags & SA_ONSTACK);
    }
    sigaltstack(nullptr, &own);
    EXPECT_EQ(own.ss_flags, 0);
    EXPECT_GE(own.ss_size, 64u << 10);
    EXPECT_FALSE(guard.interrupted());
    raise(SIGINT);
    EXPECT_TRUE(guard.interrupted());
  }
  sigaltstack(nullptr, &own);
  EXPECT_EQ(own.ss_flags, SS_DISABLE);
}

}  // namespace
}  // namespace snug
