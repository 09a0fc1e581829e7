// Ranks of several processes: this program runs itself under mpirun, and each of those runs is one rank or more.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "comm/mpi.h"
#include "comm_checks.h"

namespace snug {
namespace {

using namespace std::chrono_literals;

struct Job {
  int exit_code = 0;
  double seconds = 0;
  std::string output;
};

// So many processes, and so many ranks in each.
struct Shape {
  int processes = 1, locals = 1;
};

// A job that does not end within `limit` seconds is ended, with code 124.
Job mpirun(const Shape& shape, const std::string& what, int limit = 30) {
  const std::string command = fmt::format(
      "ASAN_OPTIONS=detect_leaks=0 timeout -k 5 {} {} -n {} --oversubscribe --allow-run-as-root {} --ranks {} {} "
      "2>&1",
      limit, SNUG_MPIRUN, shape.processes, std::filesystem::read_symlink("/proc/self/exe").string(), what,
      shape.locals);
  Job job;
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> text{};
  while (const size_t n = fread(text.data(), 1, text.size(), pipe)) job.output.append(text.data(), n);
  const int status = pclose(pipe);
  job.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return job;
}

testing::AssertionResult says(const Job& job, const std::string& text) {
  if (job.output.find(text) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "nothing said '" << text << "', but (exit code " << job.exit_code << "):\n"
                                     << job.output;
}

constexpr std::array<Shape, 2> kFour{{{4, 1}, {2, 2}}};  // ranks

TEST(Mpi, EveryByteArrivesInItsPlaceOnEveryLane) {
  for (const Shape& shape : {Shape{3}, {4}, {2, 2}, {2, 3}, {3, 2}}) {
    const Job job = mpirun(shape, "checks", 120);
    EXPECT_EQ(job.exit_code, 0) << shape.processes << " processes of " << shape.locals << '\n' << job.output;
  }
}

TEST(Mpi, OneRankOfMpirunNeedsNoMpi) { EXPECT_TRUE(says(mpirun({1}, "alone"), "started by mpi: false")); }

// Ranks that are told end with 4; what the launcher makes of it is its own.
TEST(Mpi, AKilledProcessEndsTheJob) {
  for (const Shape& shape : kFour) {
    const Job job = mpirun(shape, "kill");
    EXPECT_NE(job.exit_code, 0);
    EXPECT_LT(job.seconds, 30) << job.output;
  }
}

TEST(Mpi, ARankThatLeavesIsNamedByTheOthers) {
  for (const Shape& shape : kFour) {
    const Job job = mpirun(shape, "leave");
    EXPECT_NE(job.exit_code, 0);
    EXPECT_TRUE(says(job, "told: rank 2 failed: disk full"));
  }
}

TEST(Mpi, ARankThatEndsIsNamedByTheOthers) {
  for (const Shape& shape : kFour) {
    const Job job = mpirun(shape, "end");
    EXPECT_NE(job.exit_code, 0);
    EXPECT_TRUE(says(job, "told: rank 3 has ended while others wait for it"));
  }
}

// Its process is there and speaks; its work does not advance.
TEST(Mpi, AHungRankIsNamedByTheOthers) {
  for (const Shape& shape : kFour) {
    const Job job = mpirun(shape, "hang");
    EXPECT_NE(job.exit_code, 0);
    EXPECT_TRUE(says(job, "told: rank 3 has given no sign of life for 2 s while others wait for it"));
  }
}

// Like a host that has gone: nothing comes from it and no connection breaks.
TEST(Mpi, AStoppedProcessIsNamedByTheOthers) {
  for (const Shape& shape : {Shape{3}, {2, 2}}) {
    const Job job = mpirun(shape, "stop");
    EXPECT_NE(job.exit_code, 0);
    const std::string what = "has not been heard of for 2 s";  // as one of its ranks
    EXPECT_TRUE(says(job, "told: rank 2 " + what) || (shape.locals == 2 && says(job, "told: rank 3 " + what)))
        << job.output;
  }
}

TEST(Mpi, AWaitForADeviceEndsAsACallDoes) {
  for (const Shape& shape : kFour) {
    EXPECT_TRUE(says(mpirun(shape, "leave-device"), "told: rank 2 failed: disk full"));
    EXPECT_TRUE(says(mpirun(shape, "hang-device"), "told: rank 3 has given no sign of life for 2 s"));
  }
}

TEST(Mpi, AProcessThatFailsBeforeItHasRanksIsNamedByTheOthers) {
  EXPECT_TRUE(says(mpirun({3, 2}, "early"), "told: rank 1 failed"));
}

// "-device": the others wait for their devices.
void run_rank(Comm& comm, std::string what) {
  const int rank = comm.topology().rank, last = comm.topology().ranks - 1;
  if (what == "checks") {
    for (uint64_t seed = 1; seed < 3; seed++) {
      comm.set_replicas(seed == 1 ? comm.topology().ranks : seed == 2 && comm.topology().ranks == 4 ? 2 : 1);
      check_rank(comm, seed);
    }
    return;
  }
  for (int i = 0; i < 5; i++) comm.barrier();
  const bool device = what.ends_with("-device");
  what = what.substr(0, what.find('-'));
  if (what == "kill" && rank == 2) kill(getpid(), SIGKILL);
  if (what == "stop" && rank == last) kill(getpid(), SIGSTOP);  // not at once: another thread takes the signal
  if ((what == "stop" || what == "hang") && rank == last) std::this_thread::sleep_for(1h);
  if (what == "end" && rank == last) return;
  if (what == "leave" && rank == 2) device_error("disk full");
  if (device) comm.wait_until([] { return false; });
  comm.barrier();
  comm.barrier();
}

// In small pieces, so that many calls are of several.
int process_main(const std::string& what, int locals) {
  if (what == "alone") {
    fmt::print("started by mpi: {}\n", started_by_mpi());
    return 0;
  }
  std::atomic<int> code = 0;
  const auto attempt = [&](const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: {}\n", dynamic_cast<const PeerError*>(&error) ? "told" : "own", error.what());
      code = 4;
    }
  };
  std::vector<std::unique_ptr<Comm>> comms;
  attempt([&] {
    std::unique_ptr<Comm> processes = open_mpi(what.starts_with("hang") || what == "stop" ? 2 : kPatience, 5000);
    if (what == "early" && processes->topology().rank == 1) user_error("no such file");
    comms = mpi_ranks(std::move(processes), locals);
  });
  std::vector<std::jthread> threads;
  for (std::unique_ptr<Comm>& comm : comms)
    threads.emplace_back([&] {
      attempt([&] {
        try {
          run_rank(*comm, what);
          if (what == "end") comm.reset();
        } catch (const std::exception& error) {
          comm->leave(error.what());
          throw;
        }
      });
    });
  threads.clear();
  return code;
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--ranks") return snug::process_main(argv[2], std::atoi(argv[3]));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
