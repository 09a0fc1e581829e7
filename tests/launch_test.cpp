// How many ranks a process has, whose error ends them, and what becomes of one that hangs.
#include "api/launch.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <new>
#include <optional>
#include <thread>

#include "api/job.h"
#include "base/file.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

using namespace std::chrono_literals;

TEST(Launch, TheErrorThatCausedTheOthersIsThrown) {
  for (const int failing : {0, 1, 2})
    EXPECT_TRUE(fails_with<UserError>(
        [&] {
          run_ranks(3, 1, nullptr, [&](int rank, int, Comm* comm) {
            if (rank == failing) user_error("no such file");
            comm->barrier();
            return 0;
          });
        },
        "no such file"));
}

TEST(Launch, RankZerosResultIsReturned) {
  EXPECT_EQ(run_ranks(3, 1, nullptr, [](int rank, int, Comm*) { return 7 + rank; }), 7);
  EXPECT_EQ(run_ranks(1, 1, nullptr, [](int, int, Comm* comm) { return comm ? 1 : 0; }), 0);
}

// What resolve_ranks() makes of the options of each of several processes of one machine, which are threads here.
std::vector<int64_t> settled(std::vector<JobConfig> processes) {
  std::vector<int64_t> ranks(processes.size());
  run_ranks(static_cast<int>(processes.size()), 1, nullptr, [&](int process, int, Comm* comm) {
    JobConfig& options = processes[static_cast<size_t>(process)];
    resolve_ranks(options, Target(options, std::nullopt), PlanMode::Run, comm);
    ranks[static_cast<size_t>(process)] = options.ranks;
    return 0;
  });
  return ranks;
}

JobConfig options_of(const std::string& machine, int64_t ranks = 0) {
  JobConfig options;
  options.machine = machine;
  options.device = machine.empty() ? "cpu" : "cuda";
  options.ranks = ranks;
  return options;
}

TEST(Launch, ProcessesOfAMachineShareItsCards) {
  const auto of = [](int processes, const JobConfig& options) {
    return settled(std::vector<JobConfig>(static_cast<size_t>(processes), options));
  };
  EXPECT_EQ(of(2, options_of("8xH100")), std::vector<int64_t>(2, 8));
  EXPECT_EQ(of(3, options_of("8xH100")), std::vector<int64_t>(3, 6));
  EXPECT_EQ(of(3, options_of("2xH100")), std::vector<int64_t>(3, 3));
  EXPECT_EQ(of(2, options_of("8xH100", 4)), std::vector<int64_t>(2, 4));
  EXPECT_EQ(of(2, options_of("")), std::vector<int64_t>(2, 2));
  EXPECT_EQ(of(2, options_of("", 6)), std::vector<int64_t>(2, 6));
}

// Of the machine that is named there are prices.
TEST(Launch, ARunCountsTheCardsThatAreHere) {
  const auto ranks = [](const std::string& machine, PlanMode mode) {
    JobConfig options;
    options.machine = machine;
    resolve_ranks(options, Target(options, rough_cards("NVIDIA H200", 90, 2)), mode);
    return options.ranks;
  };
  for (const auto& [machine, named] : {std::pair("", 2), {"H200", 1}, {"8xH200", 8}}) {
    EXPECT_EQ(ranks(machine, PlanMode::Run), 2) << machine;
    EXPECT_EQ(ranks(machine, PlanMode::Look), named) << machine;
  }
}

TEST(Launch, ProcessesHaveEqualSharesOfTheRanks) {
  EXPECT_TRUE(fails_with<UserError>(
      [] {
        settled({options_of("", 5), options_of("", 5)});
      },
      "ranks: found 5, expected a multiple of 2"));
  EXPECT_TRUE(fails_with<UserError>(
      [] {
        settled({options_of("8xH100"), options_of("4xH100")});
      },
      "ranks: found 4 in process 0, 2 in process 1, expected as many in each of the 2"));
}

TEST(Launch, ProcessesRunOnTheSame) {
  const TempDirectory directory;
  const auto profile = [&](const char* name, const std::function<void(Machine&)>& change) {
    Machine machine = *builtin_machine("2xH100");
    change(machine);
    const std::filesystem::path path = directory.path() / name;
    write_text(path, write_machine(machine));
    return options_of(path);
  };
  const auto expect = [](const JobConfig& odd, const std::string& found) {
    EXPECT_TRUE(fails_with<UserError>([&] { settled({options_of("2xH100"), options_of("2xH100"), odd}); }, found));
  };
  expect(options_of(""), "device: found GPUs in process 0, the CPU in process 2, expected the same in each of the 3");
  expect(options_of("2xH200"), "device: found 'H100' in process 0, 'H200' in process 2");
  expect(profile("way", [](Machine& machine) { machine.cards->copies.rate = machine.cards->nccl.rate / 2; }),
         "machine: found copies between GPUs in process 0, NCCL between GPUs in process 2");
  expect(profile("blocks", [](Machine& machine) { machine.cards->nccl.blocks = 16; }),
         "machine: found NCCL with 8 blocks of threads in process 0, NCCL with 16 blocks of threads in process 2");
  expect(profile("rates", [](Machine& machine) { machine.cards->rates.flops *= 2; }), "machine: found rates of hash ");
  const JobConfig same = profile("same", [](Machine& machine) {
    machine.cards->free_bytes -= 1 << 30;
    machine.processor = "another";
    machine.cards->condition = "61 C";
  });
  EXPECT_EQ(settled({same, options_of("2xH100")}), std::vector<int64_t>(2, 2));
}

TEST(Launch, ProcessesOfOneMachineSeeTheSameGpus) {
  const auto settle = [](const std::array<uint64_t, 2>& seen) {
    run_ranks(2, 1, nullptr, [&](int process, int, Comm* comm) {
      JobConfig options = options_of("2xH100", 2);
      const Target target(options, rough_cards("NVIDIA H100", 90, 2), seen[static_cast<size_t>(process)]);
      resolve_ranks(options, target, PlanMode::Run, comm);
      return 0;
    });
  };
  settle({7, 7});
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        settle({7, 8});
      },
      "device: processes 0 and 1 are on one machine and do not see the same GPUs of it"));
}

// What the last of three processes, which are threads here, knows after it has made a change for itself alone; nothing
// if it may not.
std::optional<NodeProcesses> last_of_three(const std::function<bool()>& change) {
  std::optional<NodeProcesses> last;
  run_ranks(3, 1, nullptr, [&](int process, int, Comm* comm) {
    const bool changed = process == 2 && change();
    const NodeProcesses processes = processes_of_node(*comm);
    if (changed) last = processes;
    return 0;
  });
  return last;
}

TEST(Launch, MachinesAreToldApartByTheirNamesAndByWhenTheyStarted) {
  const TempDirectory directory;
  const std::string start = directory.path() / "boot_id";
  std::ofstream(start) << "11111111-2222-3333-4444-555555555555\n";
  const auto same = last_of_three([] { return true; });
  const auto renamed = last_of_three([] { return unshare(CLONE_NEWUTS) == 0 && sethostname("other", 5) == 0; });
  const auto restarted = last_of_three([&] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount(start.c_str(), "/proc/sys/kernel/random/boot_id", nullptr, MS_BIND, nullptr) == 0;
  });
  EXPECT_EQ(same->here, 3);
  EXPECT_EQ(same->place, 2);
  EXPECT_EQ(same->most, 3);
  if (!renamed || !restarted) GTEST_SKIP() << "no namespaces can be made here";
  for (const auto& other : {renamed, restarted}) {
    EXPECT_EQ(other->here, 1);
    EXPECT_EQ(other->place, 0);
    EXPECT_EQ(other->most, 2);
  }
}

int cores() {
  cpu_set_t mine;
  return sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 0;
}

// Bound by its user, to one by taskset say, it keeps to that.
TEST(Launch, AProcessThatALauncherBoundToFewerCoresThanItNeedsTakesAll) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  int first = 0;
  while (!CPU_ISSET(first, &all)) first++;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  const int usable = thread_count({});
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(thread_count({}), 1);
  EXPECT_GE(thread_count({}, 1, true), usable);
  EXPECT_EQ(cores(), 1);
  take_cores(1);
  EXPECT_EQ(cores(), 1);
  take_cores(2);
  EXPECT_GE(cores(), CPU_COUNT(&all));
  sched_setaffinity(0, sizeof all, &all);
}

TEST(LaunchDeathTest, AThreadThatHangsDoesNotHoldTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_ranks(
                  3, 1, nullptr,
                  [](int rank, int, Comm* comm) {
                    if (rank == 1) std::this_thread::sleep_for(1h);
                    comm->barrier();
                    return 0;
                  },
                  0.5),
              testing::ExitedWithCode(4), "snug: rank 1 has given no sign of life for 0.5 s while others wait for it");
}

// As one does whose device never comes to the end of what it was given.
TEST(LaunchDeathTest, AThreadThatCannotLeaveDoesNotHoldTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct Device {
    ~Device() { std::this_thread::sleep_for(1h); }
  };
  EXPECT_EXIT(run_ranks(
                  3, 1, nullptr,
                  [](int rank, int, Comm* comm) {
                    const Device device;
                    if (rank == 1) std::this_thread::sleep_for(1h);
                    comm->barrier();
                    return 0;
                  },
                  0.5),
              testing::ExitedWithCode(4), "snug: rank 1 has given no sign of life for 0.5 s while others wait for it");
}

// What it would have said is not lost: where it waited, and where to go on from.
TEST(LaunchDeathTest, ThreadsThatCannotLeaveHaveSaidWhereTheyWaited) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct Device {
    ~Device() { std::this_thread::sleep_for(1h); }
  };
  EXPECT_EXIT(run_ranks(
                  3, 1, nullptr,
                  [](int rank, int, Comm* comm) {
                    const Device device;
                    if (rank == 1) std::this_thread::sleep_for(1h);
                    try {
                      comm->barrier();
                    } catch (const PeerError& error) {
                      comm->rethrow(error, "in the all_gather at layer.3");
                    }
                    return 0;
                  },
                  0.5, [] { return "; --resume goes on from step-7"; }),
              testing::ExitedWithCode(4),
              "snug: rank 1 has given no sign of life for 0.5 s while others wait for it; rank [02] waited in the "
              "all_gather at layer.3; --resume goes on from step-7\n");
}

TEST(Launch, WhatTheMachineDidIsSaidWithWhereToGoOnFrom) {
  for (const int ranks : {1, 2}) {
    const auto run = [&](const std::function<void()>& fail) {
      run_ranks(
          ranks, 1, nullptr,
          [&](int rank, int, Comm* comm) {
            if (rank == ranks - 1) fail();
            comm->barrier();
            return 0;
          },
          kPatience, [] { return "; go on from here"; });
    };
    EXPECT_TRUE(fails_with<DeviceError>([&] { run([] { device_error("disk full"); }); }, "disk full; go on from here"));
    EXPECT_TRUE(fails_with<CapacityError>([&] { run([] { throw std::bad_alloc(); }); }, "; go on from here"));
    try {
      run([] { user_error("no such file"); });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(), "no such file");
    }
  }
}

// With its own exit code.
TEST(LaunchDeathTest, AnErrorIsSaidThoughAnotherThreadHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](const std::function<void()>& fail) {
    run_ranks(
        2, 1, nullptr,
        [&](int rank, int, Comm*) {
          if (rank == 0) fail();
          std::this_thread::sleep_for(1h);
          return 0;
        },
        0.5);
  };
  EXPECT_EXIT(run([] { user_error("no such file"); }), testing::ExitedWithCode(2), "snug: no such file\n");
  EXPECT_EXIT(run([] { throw CapacityError("too large"); }), testing::ExitedWithCode(3), "snug: too large\n");
  EXPECT_EXIT(run([] { device_error("disk full"); }), testing::ExitedWithCode(4), "snug: disk full\n");
}

}  // namespace
}  // namespace snug
