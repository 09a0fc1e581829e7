// Ranks on two hosts: network namespaces of this test, which only a cable connects.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "cli_fixture.h"

namespace snug {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

int shell(const std::string& command) { return std::system(command.c_str()); }

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

bool wait_for(double seconds, const std::function<bool()>& what) {
  for (const auto begin = Clock::now(); seconds_since(begin) < seconds; std::this_thread::sleep_for(20ms))
    if (what()) return true;
  return false;
}

// A network and a name of its own, for this process and its children. Who is not root becomes it in a namespace.
bool leave_host(const char* name) {
  const auto user = getuid(), group = getgid();
  if (unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWUTS) != 0) return false;
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", fmt::format("0 {} 1", user));
    put("/proc/self/gid_map", fmt::format("0 {} 1", group));
  }
  return sethostname(name, strlen(name)) == 0 && shell("ip link set lo up") == 0;
}

// This process is on the host "near"; a child that does nothing keeps the host "far". They go with the process.
class Hosts {
 public:
  Hosts() {
    if (shell("ip -V >/dev/null 2>&1") != 0 || !leave_host("near")) return;
    int ready[2];
    if (pipe(ready) != 0) return;
    far_ = fork();
    if (far_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const char answer = unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0 && sethostname("far", 3) == 0 ? 'y' : 'n';
      if (write(ready[1], &answer, 1) != 1) _exit(1);
      for (;;) pause();
    }
    char answer = 'n';
    if (read(ready[0], &answer, 1) != 1 || answer != 'y') return;
    made_ = shell(fmt::format("ip link add cable type veth peer name cable netns {}", far_)) == 0 &&
            shell("ip addr add 10.0.0.1/24 dev cable && ip link set cable up") == 0 &&
            shell(on_far("ip link set lo up && ip addr add 10.0.0.2/24 dev cable && ip link set cable up")) == 0;
  }
  bool made() const { return made_; }

  std::string on_far(const std::string& command) const {
    return fmt::format("nsenter -t {} -n -u sh -c '{}'", far_, command);
  }
  std::string enter_far() const { return fmt::format("nsenter -t {} -n -u", far_); }

  // The bytes that left this host.
  static uint64_t sent() {
    uint64_t bytes = 0;
    std::ifstream table("/proc/self/net/dev");
    for (std::string line; std::getline(table, line);)
      if (const size_t at = line.find("cable:"); at != std::string::npos) {
        std::istringstream numbers(line.substr(at + 6));
        for (int i = 0; i < 9; i++) numbers >> bytes;
      }
    return bytes;
  }

  // Like a host whose power goes: nothing says goodbye.
  void lose_far() const {
    shell("ip link set cable down");
    for (int turn = 0; turn < 3; turn++)  // what was just being started
      for (const auto& entry : fs::directory_iterator("/proc")) {
        const pid_t process = std::atoi(entry.path().filename().c_str());
        if (process > 0 && process != far_ && is_on_far(process)) kill(process, SIGKILL);
      }
  }

 private:
  bool is_on_far(pid_t process) const {
    std::error_code error, none;
    const fs::path its = fs::read_symlink(fmt::format("/proc/{}/ns/net", process), error);
    return !error && its == fs::read_symlink(fmt::format("/proc/{}/ns/net", far_), none);
  }

  pid_t far_ = -1;
  bool made_ = false;
};

Hosts& hosts() {
  static Hosts hosts;
  return hosts;
}

class TwoHosts : public Cli {
 protected:
  void SetUp() override {
    if (!hosts().made()) GTEST_SKIP() << "no network namespaces can be made here (or there is no 'ip')";
    // What mpirun starts the far host's daemon with, in the place of ssh: it does not notice that the host has gone.
    put(at("agent"), fmt::format("#!/bin/sh\nshift\n{} sh -c \"$*\"\n"
                                 "[ $? -lt 128 ] || while kill -0 $PPID; do sleep 0.2; done 2>/dev/null\n",
                                 hosts().enter_far()));
    // Keeps a rank's exit code, and waits for the other near one's before mpirun ends it.
    put(at("rank"),
        "#!/bin/sh\n\"$@\" >log.$OMPI_COMM_WORLD_RANK 2>&1\n"
        "code=$?\necho $code >code.$OMPI_COMM_WORLD_RANK\n"
        "for i in $(seq 100); do [ -s code.0 ] && [ -s code.1 ] && break; sleep 0.1; done\nexit $code\n");
    for (const char* name : {"agent", "rank"}) fs::permissions(at(name), fs::perms::owner_all);
  }

  static std::string train(const std::string& out, int steps) {
    return fmt::format(
        "{} train --model {} --data {} --sequence-length 48 --batch-size 4 --max-steps {} --threads 1 "
        "--zero 3 --base-format int8 --save-every 0 --learning-rate 1e-3 --out {}",
        SNUG_BINARY, (kModels / "llama").string(), (kModels / "data.jsonl").string(), steps, out);
  }

  // Ranks 0 and 1 near, 2 and 3 far, as so many processes of each host; no way between them but the cable.
  std::string on_both(const std::string& command, int processes = 2) const {
    return fmt::format(
        "cd {} && exec timeout -k 5 100 {} --allow-run-as-root --oversubscribe -host near:{},far:{} -n {} "
        "--mca plm_rsh_agent {} --mca orte_tmpdir_base {} --mca pml ob1 --mca btl tcp,self "
        "--mca btl_tcp_if_include cable --mca oob_tcp_if_include cable {} >mpirun.log 2>&1",
        directory_.path().string(), SNUG_MPIRUN, processes, processes, 2 * processes, at("agent").string(),
        directory_.path().string(), command);
  }
};

TEST_F(TwoHosts, AnOldRunStaysWhereProcessesAreToDoDifferentThings) {
  put(at("differ"), "#!/bin/sh\nexec \"$@\" --overwrite --warmup-steps $OMPI_COMM_WORLD_RANK\n");
  fs::permissions(at("differ"), fs::perms::owner_all);
  const std::string job = train("run", 2) + " --ranks 4";
  ASSERT_EQ(shell(on_both(job)), 0) << text_of(at("mpirun.log"));
  const std::string adapter = text_of(at("run/adapter/adapter_model.safetensors"));
  EXPECT_NE(shell(on_both(at("differ").string() + " " + job)), 0);
  EXPECT_THAT(text_of(at("mpirun.log")), HasSubstr("do not agree on the schedule of steps"));
  EXPECT_TRUE(text_of(at("run/adapter/adapter_model.safetensors")) == adapter);
}

TEST_F(TwoHosts, ADirectoryIsOneHostsRuns) {
  const pid_t near = start({"-c", "exec " + train("run", 1'000'000)}, "/bin/sh");
  wait_for_steps(2);
  const std::string far = fmt::format("cd {} && {} {} --resume 2>far.log", directory_.path().string(),
                                      hosts().enter_far(), train("run", 3));
  EXPECT_EQ(WEXITSTATUS(shell(far)), 2);
  EXPECT_THAT(text_of(at("far.log")), HasSubstr(fmt::format("run: a run is going on there: process {} on near", near)));
  kill(near, SIGKILL);
  waitpid(near, nullptr, 0);
  EXPECT_EQ(shell(far), 0) << text_of(at("far.log"));
}

TEST_F(TwoHosts, TrainToTheBytesOfFourThreads) {
  ASSERT_EQ(
      shell(fmt::format("cd {} && {} --ranks 4 >threads.log 2>&1", directory_.path().string(), train("threads", 6))), 0)
      << text_of(at("threads.log"));
  const std::string adapter = text_of(at("threads/adapter/adapter_model.safetensors"));
  EXPECT_GT(adapter.size(), 10'000u);
  for (const int processes : {2, 1}) {
    const std::string out = fmt::format("hosts-{}", processes);
    const uint64_t before = hosts().sent();
    ASSERT_EQ(shell(on_both(train(out, 6) + " --ranks 4", processes)), 0) << text_of(at("mpirun.log"));
    EXPECT_GT(hosts().sent() - before, 1'000'000u);
    EXPECT_THAT(text_of(at("mpirun.log")), HasSubstr("\nranks 0 to 1 on near; 2 to 3 on far\n"));
    EXPECT_TRUE(text_of(at(out) / "adapter/adapter_model.safetensors") == adapter) << out;
  }
  ASSERT_EQ(shell(on_both("--map-by node " + train("turns", 1) + " --ranks 4", 2)), 0) << text_of(at("mpirun.log"));
  EXPECT_THAT(text_of(at("mpirun.log")), HasSubstr("\nranks 0, 2 on near; 1, 3 on far\n"));
}

TEST_F(TwoHosts, WhenOneVanishesTheOtherEndsAndNamesIt) {
  const pid_t mpirun = fork();
  if (mpirun == 0) {
    setpgid(0, 0);
    _exit(WEXITSTATUS(shell(on_both("./rank " + train("run", 1'000'000) + " --save-every 3"))));
  }
  ASSERT_TRUE(wait_for(60, [&] { return fs::exists(at("run/checkpoints/step-6")); })) << text_of(at("mpirun.log"));
  const auto begin = Clock::now();
  hosts().lose_far();
  EXPECT_TRUE(wait_for(30, [&] { return !text_of(at("code.0")).empty() && !text_of(at("code.1")).empty(); }));
  RecordProperty("seconds", static_cast<int>(seconds_since(begin)));
  kill(-mpirun, SIGKILL);
  waitpid(mpirun, nullptr, 0);
  shell("ip link set cable up");
  std::string saved;
  for (const std::string rank : {"0", "1"}) {
    EXPECT_EQ(text_of(at("code." + rank)), "4\n");
    const std::string log = text_of(at("log." + rank));
    const std::string line = log.substr(std::min(log.size(), log.rfind("snug: ")));
    // Where it waited, unless that was between two waits.
    EXPECT_THAT(line, testing::MatchesRegex("snug: rank [23] has not been heard of for 20 s(; rank " + rank +
                                            " waited (in the (all_gather|exchange) )?at .+)?"
                                            "; --resume goes on from run/checkpoints/step-[0-9]+\n"))
        << log;
    saved = line.substr(line.rfind('-') + 1);
  }
  // On this host alone.
  const pid_t resumed =
      start({"-c", "exec " + train("run", 1'000'000) + " --ranks 4 --save-every 3 --resume"}, "/bin/sh");
  EXPECT_TRUE(wait_for(60, [&] { return text_of(at("stderr")).find("goes on after step " + saved) != saved.npos; }))
      << text_of(at("stderr"));
  kill(resumed, SIGUSR1);
  EXPECT_EQ(finish(resumed).code, 130) << text_of(at("stderr"));
  EXPECT_GT(losses("run").size(), std::stoul(saved));
}

}  // namespace
}  // namespace snug
