// A run directory has one writer, and what ends a run from outside leaves it with a checkpoint.
#include <sched.h>

#include <csignal>
#include <cstring>

#include "cli_fixture.h"

namespace snug {
namespace {

class OwnedRun : public Cli {
 protected:
  static Words long_job(const Words& more = {}) {
    return job("train", with({"--max-steps", "400", "--save-every", "5", "--log-every", "100"}, more));
  }

  // Steps that the run has written.
  size_t steps() const { return losses("run").size(); }

  bool has_checkpoint() const { return fs::exists(at("run/checkpoints")) && !fs::is_empty(at("run/checkpoints")); }
};

TEST_F(OwnedRun, ASecondRunIsRefusedAndTheFirstGoesOn) {
  const pid_t first = start(long_job());
  wait_for_steps(2);
  for (const Words& how : {Words{"--resume"}, Words{"--overwrite"}, Words{}}) {
    const Outcome outcome = run(long_job(how));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("run: a run is going on there: process " + std::to_string(first)));
  }
  int status = 0;
  waitpid(first, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(steps(), 400u);
  EXPECT_FALSE(fs::exists(at("run/.owner")));
}

TEST_F(OwnedRun, ARunWhoseFileWasRemovedStillHasItsDirectory) {
  const pid_t first = start(long_job());
  wait_for_steps(2);
  fs::remove(at("run/.owner"));
  const Outcome second = run(long_job({"--resume"}));
  EXPECT_EQ(second.code, 2) << second.err;
  EXPECT_THAT(second.err, HasSubstr("run: a run is going on there, whose file .owner was removed"));
  for (const char* out : {"run/checkpoints/other", "run/adapter"})
    EXPECT_THAT(run(job("train", {"--out", out})).err, HasSubstr("', which is the run's in "));
  int status = 0;
  waitpid(first, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(steps(), 400u);
}

// Makes a process and its children a host of its own, as far as a network and a name make one.
auto on_host(const char* name) {
  return [name] {
    const int of_host = CLONE_NEWNET | CLONE_NEWUTS;
    return (unshare(of_host) == 0 || unshare(CLONE_NEWUSER | of_host) == 0) && sethostname(name, strlen(name)) == 0;
  };
}

TEST_F(OwnedRun, OfTwoHostsThatShareADirectoryOneWrites) {
  if (finish(start({"-c", "true"}, "/bin/sh", on_host("near"))).code != 0)
    GTEST_SKIP() << "no namespaces of network and name can be made here";
  const pid_t near = start(long_job(), SNUG_BINARY, on_host("near"));
  wait_for_steps(2);
  for (const Words& how : {Words{"--resume"}, Words{"--overwrite"}, Words{}}) {
    const Outcome far = finish(start(long_job(how), SNUG_BINARY, on_host("far")));
    EXPECT_EQ(far.code, 2) << far.err;
    EXPECT_THAT(far.err,
                HasSubstr("run: a run is going on there: process " + std::to_string(near) + " on near, since"));
  }
  int status = 0;
  waitpid(near, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(steps(), 400u);
  const Outcome requeued = finish(start(long_job({"--resume", "--max-steps", "401"}), SNUG_BINARY, on_host("far")));
  EXPECT_EQ(requeued.code, 0) << requeued.err;
  EXPECT_EQ(steps(), 401u);
}

TEST_F(OwnedRun, AKilledRunsDirectoryIsTakenOverByTheNext) {
  const pid_t first = start(long_job({"--max-steps", "100000"}));
  wait_for_steps(8);
  kill(first, SIGKILL);
  EXPECT_EQ(finish(first).code, 128 + SIGKILL);
  const Outcome next = run(long_job({"--resume", "--max-steps", "20"}));
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_THAT(next.err, HasSubstr("process " + std::to_string(first)));
  EXPECT_THAT(next.err, HasSubstr("is gone without having ended its run"));
}

TEST_F(OwnedRun, ATerminalThatHangsUpLeavesACheckpoint) {
  const pid_t child = start(long_job({"--max-steps", "100000"}));
  wait_for_steps(2);
  kill(child, SIGHUP);
  kill(child, SIGHUP);  // as a shell sends it again
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_TRUE(has_checkpoint());
}

TEST_F(OwnedRun, UnderNohupAHangupIsIgnored) {
  const pid_t child = start(long_job({"--max-steps", "60"}), SNUG_BINARY, [] {
    signal(SIGHUP, SIG_IGN);
    return true;
  });
  wait_for_steps(2);
  kill(child, SIGHUP);
  EXPECT_EQ(finish(child).code, 0);
  EXPECT_EQ(steps(), 60u);
}

TEST_F(OwnedRun, AReaderThatWentAwayEndsNoRun) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  // start() gives standard error a file; the shell gives it the pipe, which nobody but the program then holds.
  std::string line = SNUG_BINARY;
  for (const std::string& word : long_job({"--max-steps", "30", "--log-every", "1"})) line += " '" + word + "'";
  const pid_t child =
      start({"-c", line + " 2>&" + std::to_string(ends[1])}, "/bin/sh", [&] { return close(ends[0]) == 0; });
  close(ends[1]);
  close(ends[0]);
  EXPECT_EQ(finish(child).code, 0);
  EXPECT_EQ(steps(), 30u);
}

// What it would have printed at its end is lost, what it has made is not.
TEST_F(OwnedRun, AReaderOfItsJsonThatWentAwayChangesNoExit) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::string line = std::string("exec ") + SNUG_BINARY;
  for (const std::string& word : job("train", {"--json"})) line += " '" + word + "'";
  const pid_t child =
      start({"-c", line + " >&" + std::to_string(ends[1])}, "/bin/sh", [&] { return close(ends[0]) == 0; });
  close(ends[1]);
  close(ends[0]);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(at("run/adapter")));
}

TEST_F(OwnedRun, ProcessesOfTorchrunAreRefusedWithTheLineThatDoesTheSame) {
  const auto under = [&](const Words& words, const char* local) {
    return finish(start(words, SNUG_BINARY, [=] {
      for (const auto& [name, value] : {std::pair("RANK", "1"), {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "near"}})
        setenv(name, value, 1);
      return setenv("LOCAL_WORLD_SIZE", local, 1) == 0;
    }));
  };
  const Outcome one = under(long_job(), "4"), two = under(long_job(), "2");
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, HasSubstr("WORLD_SIZE=4"));
  EXPECT_THAT(one.err, HasSubstr("'snug train ...'"));
  EXPECT_THAT(two.err, HasSubstr("'mpirun -n 2 --host HOST,... snug train ...'"));
  EXPECT_FALSE(fs::exists(at("run")));
  EXPECT_EQ(under(job("plan"), "4").code, 0);
}

}  // namespace
}  // namespace snug
