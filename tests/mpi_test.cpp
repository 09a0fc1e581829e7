// Ranks as processes: this program runs itself under mpirun, and each of those runs is one rank.
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

// A job that does not end within `limit` seconds is ended, with code 124.
Job mpirun(int ranks, const std::string& what, int limit = 30) {
  const std::string command = fmt::format(
      "ASAN_OPTIONS=detect_leaks=0 timeout -k 5 {} {} -n {} --oversubscribe --allow-run-as-root {} --rank {} 2>&1",
      limit, SNUG_MPIRUN, ranks, std::filesystem::read_symlink("/proc/self/exe").string(), what);
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

TEST(Mpi, EveryByteArrivesInItsPlaceOnEveryLane) {
  for (const int ranks : {3, 4}) {
    const Job job = mpirun(ranks, "checks", 120);
    EXPECT_EQ(job.exit_code, 0) << ranks << " ranks\n" << job.output;
  }
}

TEST(Mpi, OneRankOfMpirunNeedsNoMpi) { EXPECT_TRUE(says(mpirun(1, "alone"), "started by mpi: false")); }

// Ranks that are told end with 4; what the launcher makes of it is its own.
TEST(Mpi, AKilledRankEndsTheJob) {
  const Job job = mpirun(4, "kill");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_LT(job.seconds, 30) << job.output;
}

TEST(Mpi, ARankThatLeavesIsNamedByTheOthers) {
  const Job job = mpirun(4, "leave");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_TRUE(says(job, "told: rank 2 failed: disk full"));
}

TEST(Mpi, ARankThatEndsIsNamedByTheOthers) {
  const Job job = mpirun(3, "end");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_TRUE(says(job, "told: rank 2 has ended while others wait for it"));
}

// Its process is there and speaks; its work does not advance.
TEST(Mpi, AHungRankIsNamedByTheOthers) {
  const Job job = mpirun(3, "hang");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_TRUE(says(job, "told: rank 2 has given no sign of life for 2 s while others wait for it"));
}

// Like a host that has gone: nothing comes from it and no connection breaks.
TEST(Mpi, AStoppedRankIsNamedByTheOthers) {
  const Job job = mpirun(3, "stop");
  EXPECT_NE(job.exit_code, 0);
  EXPECT_TRUE(says(job, "told: rank 2 has not been heard of for 2 s"));
}

TEST(Mpi, AWaitForADeviceEndsAsACallDoes) {
  EXPECT_TRUE(says(mpirun(4, "leave-device"), "told: rank 2 failed: disk full"));
  EXPECT_TRUE(says(mpirun(3, "hang-device"), "told: rank 2 has given no sign of life for 2 s"));
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
  if (what == "stop" && rank == last) kill(getpid(), SIGSTOP);
  if (what == "hang" && rank == last) std::this_thread::sleep_for(1h);
  if (what == "end" && rank == last) return;
  if (what == "leave" && rank == 2) device_error("disk full");
  if (device) comm.wait_until([] { return false; });
  comm.barrier();
  comm.barrier();
}

// In small pieces, so that many calls are of several.
int rank_main(const std::string& what) {
  if (what == "alone") {
    fmt::print("started by mpi: {}\n", started_by_mpi());
    return 0;
  }
  const std::unique_ptr<Comm> comm = open_mpi(what.starts_with("hang") || what == "stop" ? 2 : kPatience, 5000);
  try {
    run_rank(*comm, what);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", dynamic_cast<const PeerError*>(&error) ? "told" : "own", error.what());
    comm->leave(error.what());
    return 4;
  }
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--rank") return snug::rank_main(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
