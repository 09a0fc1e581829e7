// A device that is lost in the midst of a run, a copy that fails, memory that is gone when it is to be taken: exit 4 or
// 3 with one line, and what was saved before is as it was.
#include <sys/resource.h>

#include <chrono>
#include <map>

#include "cli_fixture.h"
#ifdef SNUG_TESTS_ON_CUDA
#include "backend/cuda/cards.h"
#endif

namespace snug {
namespace {

using ::testing::EndsWith;
using ::testing::Not;

#ifdef SNUG_TESTS_ON_CUDA
constexpr int64_t kFirst = 50, kGrowth = 2;  // the launch that fails, and how it grows from one run to the next
constexpr std::chrono::seconds kSoon{60};
#else
constexpr int64_t kFirst = 1, kGrowth = 3;
constexpr std::chrono::seconds kSoon{20};  // before anybody's patience has run out
#endif

struct Fault {
  std::string called;
  Words options;
  std::string rank = "0", kind = "", streams = "";
};

class Faults : public Cli, public testing::WithParamInterface<Fault> {
 protected:
  static Words saving_job() {
    Words words = job("train", {"--max-steps", "4", "--save-every", "1", "--keep", "all", "--resume", "true"});
    words.insert(words.end(), GetParam().options.begin(), GetParam().options.end());
    return words;
  }

  // The bytes of all files, by their names.
  std::map<std::string, std::string> files_in(const std::string& directory) const {
    std::map<std::string, std::string> files;
    std::error_code missing;
    for (const auto& entry : fs::recursive_directory_iterator(at(directory), missing))
      if (entry.is_regular_file()) files[entry.path().lexically_relative(at(directory))] = text_of(entry.path());
    return files;
  }

  Outcome run_with_fault(int64_t launch) const {
    return finish(start(saving_job(), SNUG_FAULTY_DEVICE, [&] {
      const Fault& fault = GetParam();
      return setenv("SNUG_FAULT_AT", std::to_string(launch).c_str(), 1) == 0 &&
             setenv("SNUG_FAULT_RANK", fault.rank.c_str(), 1) == 0 &&
             setenv("SNUG_FAULT_KIND", fault.kind.c_str(), 1) == 0 &&
             setenv("SNUG_FAULT_STREAMS", fault.streams.c_str(), 1) == 0;
    }));
  }

  // The last of the checkpoints, which are all as they are without a fault; 0 if there are none.
  int intact_steps(const std::map<std::string, std::string>& expected) const {
    int last = 0;
    for (const auto& [name, bytes] : files_in("run/checkpoints")) {
      if (name.find(".partial/") != name.npos) continue;  // what was just being saved
      const auto undisturbed = expected.find(name);
      EXPECT_TRUE(undisturbed != expected.end() && bytes == undisturbed->second) << name;
      last = std::max(last, std::stoi(name.substr(name.find('-') + 1)));
    }
    return last;
  }
};

// While loading, in steps, in saving, in the export: at launches ever further on, until none is hit.
TEST_P(Faults, EndTheRunWhichGoesOnLater) {
#ifdef SNUG_TESTS_ON_CUDA
  const auto cards = static_cast<int>(cuda_cards().size());
  if (cards <= std::stoi(GetParam().rank)) GTEST_SKIP() << "there are only " << cards << " GPUs";
#endif
  ASSERT_EQ(run(saving_job()).code, 0) << text_of(at("stderr"));
  const auto checkpoints = files_in("run/checkpoints"), adapter = files_in("run/adapter");
  int failures = 0, resumed = 0;
  for (int64_t launch = kFirst;; launch *= kGrowth) {
    SCOPED_TRACE(launch);
    fs::remove_all(at("run"));
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = run_with_fault(launch);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
    if (outcome.code == 0) break;
    failures++;
    ASSERT_EQ(outcome.code, 4) << outcome.err;
    const std::string line = outcome.err.substr(outcome.err.find("snug: "));
    EXPECT_EQ(std::ranges::count(line, '\n'), 1) << line;
    const int last = intact_steps(checkpoints);
    if (last > 0) {
      resumed++;
      EXPECT_THAT(line, EndsWith("; --resume goes on from run/checkpoints/step-" + std::to_string(last) + "\n"));
    } else {
      EXPECT_THAT(line, Not(HasSubstr("--resume")));
    }
    ASSERT_EQ(run(saving_job()).code, 0) << text_of(at("stderr"));
    EXPECT_EQ(files_in("run/checkpoints"), checkpoints);
    EXPECT_EQ(files_in("run/adapter"), adapter);
    EXPECT_EQ(losses("run").size(), 4u);
  }
  EXPECT_GT(failures, 2);
  EXPECT_GT(resumed, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, Faults,
#ifdef SNUG_TESTS_ON_CUDA
    testing::Values(Fault{"AGpu", {"--device", "cuda", "--ranks", "1"}},
                    Fault{"ACopy", {"--device", "cuda", "--ranks", "1", "--offload-states", "host"}, "0", "copy"},
                    Fault{"OneOfTwoGpus", {"--device", "cuda", "--ranks", "2", "--zero", "3"}, "1"}),
#else
    testing::Values(
        Fault{"AProcessor", {"--device", "cpu"}},
        Fault{"ACopyOfALane", {"--device", "cpu", "--offload-states", "host"}, "0", "copy"},
        Fault{"ACopyOfAStream", {"--device", "cpu", "--offload-states", "host"}, "0", "copy", "yes"},
        Fault{"TheFirstOfTwoRanks", {"--device", "cpu", "--ranks", "2", "--zero", "3"}},
        Fault{"TheSecondOfTwoRanks", {"--device", "cpu", "--ranks", "2", "--zero", "3"}, "1"},
        Fault{"TheSecondOfTwoRanksOnStreams", {"--device", "cpu", "--ranks", "2", "--zero", "3"}, "1", "", "yes"}),
#endif
    [](const auto& info) { return info.param.called; });

#ifndef SNUG_TESTS_ON_CUDA
TEST_F(Cli, MemoryThatALimitOfAddressesForbidsDoesNotFit) {
  for (const char* ranks : {"1", "2"}) {
    const Outcome outcome =
        finish(start(job("train", {"--device", "cpu", "--sequence-length", "2048", "--batch-size", "128",
                                   "--micro-batch-size", "64", "--recompute", "none", "--ranks", ranks}),
                     SNUG_BINARY, [] {
                       const rlimit limit{1 << 30, 1 << 30};
                       return setrlimit(RLIMIT_AS, &limit) == 0;
                     }));
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    const std::string line = outcome.err.substr(outcome.err.find("snug: "));
    EXPECT_EQ(std::ranges::count(line, '\n'), 1) << line;
    for (const char* part : {"snug: what comes nearest ", " are free within ulimit -v: ", "; it would fit with "})
      EXPECT_THAT(line, HasSubstr(part));
    EXPECT_FALSE(fs::exists(at("run/job.yaml")));
  }
}
#endif

// ShardedArray up for so long that another host took its directory over.
TEST_F(Cli, ARunThatHasLostItsDirectoryEndsAndWritesNothingMoreThere) {
  for (const char* ranks : {"1", "2"}) {
    const pid_t child = start(job("train", {"--max-steps", "100000", "--save-every", "100000", "--ranks", ranks}),
                              SNUG_FAULTY_DEVICE, [] { return setenv("SNUG_FAULT_LOCKS", "1", 1) == 0; });
    wait_for_steps(2);
    std::fstream(at("run/.owner"), std::ios::in | std::ios::out) << "far\n77\n2026-01-02 03:04:05\n0\nanother start\n";
    usleep(200'000);  // a step may be at its end
    const size_t steps = losses("run").size();
    const Outcome outcome = finish(child);
    EXPECT_EQ(outcome.code, 4);
    EXPECT_EQ(
        outcome.err.substr(outcome.err.rfind("snug: ")),
        "snug: run: process 77 on far, since 2026-01-02 03:04:05, has taken it over, as this process gave no sign "
        "of life; nothing more is written there\n");
    EXPECT_EQ(losses("run").size(), steps);
    EXPECT_TRUE(fs::is_empty(at("run/checkpoints")));
    EXPECT_FALSE(fs::exists(at("run/adapter")));
    fs::remove_all(at("run"));
  }
}

}  // namespace
}  // namespace snug
