// Limits of a process and of the control group around it: a plan that fits runs, and what does not exits with 3.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statfs.h>

#include <random>

#include "cli_fixture.h"
#include "control_group.h"

namespace snug {
namespace {

// A limit in bytes, which a group has in one of these files.
struct MemoryGroup : ControlGroup {
  MemoryGroup() : ControlGroup("memory", {"memory.max", "memory.limit_in_bytes"}) {}
};

class Limits : public Cli {
 protected:
  Outcome run_limited(const Words& words, __rlimit_resource resource, uint64_t limit) const {
    return finish(start(words, SNUG_BINARY, [&] {
      const rlimit both{limit, limit};
      return setrlimit(resource, &both) == 0;
    }));
  }
  Outcome run_in(const MemoryGroup& group, const Words& words) const {
    return finish(start(words, SNUG_BINARY, [&] { return group.enter(); }));
  }
  static bool set(const MemoryGroup& group, uint64_t bytes) {
    std::ofstream out(group.file());
    return !!(out << bytes << std::flush);
  }
  // Small models on one rank and on several, each with what it saves.
  Words some_job(std::mt19937& random, const std::string& command) {
    const std::string ranks = std::to_string(uint64_t{1} << random() % 3);
    return job(command, {"--max-steps", "1", "--batch-size", "8", "--ranks", ranks, "--overwrite", "true", "--method",
                         random() % 2 ? "full" : "lora"});
  }
  // Runs, or does not fit; what a plan says of fitting is so.
  static void expect_fits_or_refused(const Outcome& plan, const Outcome& run, int& fitting) {
    EXPECT_THAT(plan.code, ::testing::AnyOf(0, 3)) << plan.err;
    EXPECT_EQ(run.code, plan.code) << plan.out << plan.err << run.err;
    if (run.code == 0) fitting++;
  }
};

TEST_F(Limits, OfTwentyRandomGroupsNoneKillsARun) {
  std::mt19937 random(35);
  int fitting = 0, refused = 0;
  for (int i = 0; i < 20; i++) {
    const MemoryGroup group;
    const uint64_t bytes = (uint64_t{16} << 20) + random() % (uint64_t{160} << 20);
    if (!group.made() || !set(group, bytes)) GTEST_SKIP() << "no control group that limits memory can be made here";
    SCOPED_TRACE(bytes);
    const Outcome outcome = run_in(group, some_job(random, "train"));
    EXPECT_THAT(outcome.code, ::testing::AnyOf(0, 3)) << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::AnyOf(HasSubstr("free within " + group.file().string()),
                                              HasSubstr(" for what a process takes before it plans")));
    (outcome.code == 0 ? fitting : refused)++;
  }
  EXPECT_GE(fitting, 5);
  EXPECT_GE(refused, 3);
}

TEST_F(Limits, TheGroupOutsideBindsTooAndIsNamed) {
  const MemoryGroup outside;
  if (!outside.made() || !set(outside, 34 << 20)) GTEST_SKIP() << "no control group can be made here";
  const fs::path inside = outside.file().parent_path() / "inside";
  fs::create_directory(inside);
  const Outcome outcome = finish(start(job("train"), SNUG_BINARY, [&] {
    std::ofstream processes(inside / "cgroup.procs");
    return !!(processes << getpid() << std::flush);
  }));
  for (int i = 0; i < 100 && rmdir(inside.c_str()) != 0; i++) usleep(50'000);
  if (outcome.code == 126) GTEST_SKIP() << "no group within a group can be entered here";
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("free within " + outside.file().string() + ":"));
}

TEST_F(Limits, AGroupThatIsTooSmallToPlanInIsSaid) {
  const MemoryGroup group;
  for (const uint64_t megabytes : {8u, 16u, 24u}) {
    if (!group.made() || !set(group, megabytes << 20)) GTEST_SKIP() << "no control group can be made here";
    for (const std::string command : {"plan", "train"}) {
      const Outcome refused = run_in(group, job(command));
      EXPECT_EQ(refused.code, 3) << megabytes << command << refused.err;
      EXPECT_THAT(refused.err, HasSubstr("snug: " + group.file().string() + ": found "));
      EXPECT_THAT(refused.err, HasSubstr(" for what a process takes before it plans"));
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Between what is refused before planning and what is planned by nothing crashes.
TEST_F(Limits, NoSizeOfAddressSpaceOrDataEndsACommandWithoutALine) {
  const std::string tokens = kModels / "data.jsonl", model = kModels / "llama";
  const Words common{"--model", model, "--threads", "2", "--compute", "fp32"};
  const std::vector<Words> commands{
      job("plan", {"--threads", "2"}), job("train", {"--threads", "2", "--max-steps", "1", "--overwrite"}),
      with({"eval", "--data", tokens, "--sequence-length", "48"}, common),
      with({"merge", "--adapter", kModels / "llama/adapter_init", "--out", "merged", "--overwrite"}, common)};
  for (const Words& words : commands)
    for (const auto& [resource, first] : {std::pair(RLIMIT_DATA, 22), std::pair(RLIMIT_AS, 76)})
      for (uint64_t megabytes = static_cast<uint64_t>(first); megabytes < static_cast<uint64_t>(first) + 50;
           megabytes += 6) {
        const Outcome outcome = run_limited(words, resource, megabytes << 20);
        SCOPED_TRACE(words[0] + " " + std::to_string(megabytes));
        EXPECT_THAT(outcome.code, ::testing::AnyOf(0, 3)) << outcome.err;
        EXPECT_TRUE(outcome.code == 0 || outcome.err.find("snug: ") != std::string::npos) << outcome.err;
      }
}

TEST_F(Limits, OfAddressSpaceAndDataAreWhatPlansGoBy) {
  std::mt19937 random(36);
  int fitting = 0;
  for (int i = 0; i < 12; i++) {
    const bool data = i % 2;
    const uint64_t bytes = (uint64_t{data ? 64u : 256u} << 20) + random() % (uint64_t{700} << 20);
    SCOPED_TRACE((data ? "data " : "address space ") + std::to_string(bytes));
    const __rlimit_resource resource = data ? RLIMIT_DATA : RLIMIT_AS;
    std::mt19937 same = random;
    const Outcome plan = run_limited(some_job(random, "plan"), resource, bytes);
    const Outcome run = run_limited(some_job(same, "train"), resource, bytes);
    expect_fits_or_refused(plan, run, fitting);
    EXPECT_THAT(run.err, HasSubstr(data ? "free within ulimit -d" : "free within ulimit -v"));
  }
  EXPECT_GE(fitting, 3);
}

// Too little to start a thread in, or for a kernel's stack: said before anything is done.
TEST_F(Limits, WhatIsTooLittleForAProcessIsSaid) {
  for (const std::string command : {"plan", "train"}) {
    const auto refusal = [&](__rlimit_resource resource, uint64_t bytes, int code) {
      const Outcome refused = run_limited(job(command), resource, bytes);
      EXPECT_EQ(refused.code, code) << command << refused.err;
      return refused.err;
    };
    EXPECT_THAT(refusal(RLIMIT_DATA, 10 << 20, 3), HasSubstr("snug: ulimit -d: found "));
    EXPECT_THAT(refusal(RLIMIT_DATA, 20 << 20, 3), HasSubstr(" for what a process takes before it plans"));
    EXPECT_THAT(refusal(RLIMIT_STACK, 100 << 10, 4),
                HasSubstr("stacks: found a limit of 102400 bytes for each thread"));
  }
  EXPECT_EQ(run_limited(job("train"), RLIMIT_STACK, 1 << 20).code, 0);
}
#endif

TEST_F(Limits, ASoftLimitOfOpenFilesIsRaisedAndAHardOneNamed) {
  const Words words = job("train", {"--max-steps", "1", "--batch-size", "8", "--ranks", "8", "--overwrite", "true"});
  const Outcome raised = finish(start(words, SNUG_BINARY, [] {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 24;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
  }));
  EXPECT_EQ(raised.code, 0) << raised.err;
  for (const std::string command : {"train", "plan"}) {
    Words limited = words;
    limited[0] = command;
    const Outcome refused = run_limited(limited, RLIMIT_NOFILE, 64);
    EXPECT_EQ(refused.code, 4) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("found a limit of 64 in each process (ulimit -n), expected at least "));
  }
}

// To the last file.
TEST_F(Limits, OfOpenFilesPlanAndRunNeedTheSame) {
  const Words plan = job("plan", {"--max-steps", "1"}), train = job("train", {"--max-steps", "1"});
  const Outcome refused = run_limited(plan, RLIMIT_NOFILE, 40);
  const size_t at = refused.err.find("expected at least ");
  ASSERT_NE(at, refused.err.npos) << refused.err;
  const uint64_t least = std::stoull(refused.err.substr(at + 18));
  for (const Words& words : {plan, train}) EXPECT_EQ(run_limited(words, RLIMIT_NOFILE, least - 1).code, 4) << words[0];
  for (const Words& words : {plan, train}) EXPECT_EQ(run_limited(words, RLIMIT_NOFILE, least).code, 0) << words[0];
}

// Plan and run say the same, before anything is made.
TEST_F(Limits, OfTheLengthOfFilesPlansKnow) {
  for (const std::string command : {"plan", "train"}) {
    const Outcome refused = run_limited(job(command, {"--method", "full"}), RLIMIT_FSIZE, 20'000);
    EXPECT_EQ(refused.code, 4) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("found a limit of 20000 bytes for each (ulimit -f), expected at least "));
  }
  EXPECT_FALSE(fs::exists(at("run")));
}

class Tmpfs : public Limits {
 protected:
  Tmpfs() : there_("/dev/shm/snug-limits-" + std::to_string(getpid())) {
    struct statfs system {};
    made_ = statfs("/dev/shm", &system) == 0 && system.f_type == 0x01021994 && fs::create_directory(there_);
  }
  ~Tmpfs() override { fs::remove_all(there_); }
  const fs::path there_;
  bool made_ = false;
};

// Checkpoints and the adapter count to the host; a cap that they do not fit in is missed by as much.
TEST_F(Tmpfs, WhatIsSavedThereIsTheHosts) {
  if (!made_) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  const auto host_bytes = [&](const fs::path& out) {
    const Outcome plan = run(job("plan", {"--json", "--save-every", "0", "--out", out}));
    EXPECT_EQ(plan.code, 0) << plan.err;
    return nlohmann::json::parse(plan.out);
  };
  const nlohmann::json on_disk = host_bytes("run"), on_tmpfs = host_bytes(there_ / "run");
  const uint64_t saved =
      on_disk["saved"]["checkpoint_bytes"].get<uint64_t>() + on_disk["saved"]["export_bytes"].get<uint64_t>();
  EXPECT_EQ(on_tmpfs["host_bytes"].get<uint64_t>(), on_disk["host_bytes"].get<uint64_t>() + saved);
  const Outcome outcome = run(job("train", {"--out", there_ / "run"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr((there_ / "run").string() + " is on tmpfs, which is memory: "));
}

TEST_F(Tmpfs, WhatIsOffloadedThereIsTheHosts) {
  if (!made_) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  const Words words = job("train", {"--method", "full", "--offload-states", "disk", "--disk-dir", there_});
  const Outcome free = run(words);
  EXPECT_EQ(free.code, 0) << free.err;
  EXPECT_THAT(free.err, HasSubstr(" that are offloaded there count to the host"));
}

TEST_F(Tmpfs, AllCheckpointsThereAreRefused) {
  if (!made_) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  const Outcome outcome = run(job("train", {"--keep", "all", "--out", there_ / "run"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("is on tmpfs, which is memory: expected a number of checkpoints"));
}

}  // namespace
}  // namespace snug
