#include "base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>

#include "control_group.h"

namespace snug {
namespace {

// What usable_cores() says in a process of its own.
template <class Prepare>
int cores_where(const Prepare& prepare) {
  const pid_t child = fork();
  if (child == 0) _exit(prepare() ? usable_cores() : 255);
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

// To the first so many cores of those that this process has.
bool bind_to(int count) {
  cpu_set_t all, some;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return false;
  CPU_ZERO(&some);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&some) < count; core++)
    if (CPU_ISSET(core, &all)) CPU_SET(core, &some);
  return sched_setaffinity(0, sizeof some, &some) == 0;
}

TEST(Cores, AreThoseThatTheProcessIsBoundTo) {
  const int all = usable_cores();
  for (const int few : {1, 2}) EXPECT_EQ(cores_where([&] { return bind_to(few); }), std::min(few, all));
}

TEST(Cores, AreAsManyAsTheControlGroupGivesTimeFor) {
  const ControlGroup group("cpu", {"cpu.max", "cpu.cfs_quota_us"});
  if (!group.made()) GTEST_SKIP() << "no control group that bounds the processors' time can be made here";
  const auto with_quota = [&](const char* microseconds) {
    return cores_where([&] {
      std::ofstream quota(group.file());
      return !!(quota << microseconds << std::flush) && group.enter();
    });
  };
  const int all = usable_cores();
  EXPECT_EQ(with_quota("50000"), 1);  // of 100000, the usual period
  EXPECT_EQ(with_quota("150000"), std::min(all, 2));
  EXPECT_EQ(with_quota("100000000"), all);
}

}  // namespace
}  // namespace snug
