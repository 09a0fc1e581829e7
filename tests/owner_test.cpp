// One process at a time writes into a directory, on whatever host.
#include "base/owner.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

class Owner : public ::testing::Test {
 protected:
  DirectoryOwner::Terms terms(bool locks_hold) {
    return {locks_hold, 0.05, 0.5, [this](const std::string& holder) { taken_from_ = holder; }};
  }

  // As a process of another host leaves it, and goes on writing it.
  void put_holder(const std::string& host, int64_t process, int64_t beat) const {
    fs::create_directories(out_);
    std::ofstream file(out_ / ".owner", std::ios::in | std::ios::out);  // in place, as its holder does it
    if (!file) file.open(out_ / ".owner");
    file << host << "\n" << process << "\n2026-01-02 03:04:05\n" << beat << "\nanother start of its kernel\n";
  }

  TempDirectory directory_;
  fs::path out_ = directory_.path() / "runs" / "one";
  std::string taken_from_;
};

std::string own_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

TEST_F(Owner, TheSecondIsRefusedByNameHostAndProcess) {
  for (const bool locks_hold : {true, false}) {
    const DirectoryOwner first(out_, terms(locks_hold));
    EXPECT_TRUE(fails_with<UserError>(
        [&] { DirectoryOwner(out_, terms(locks_hold)); },
        fmt::format("{}: a run is going on there: process {} on {}, since 20", out_.string(), getpid(), own_name())));
    EXPECT_EQ(taken_from_, "");
  }
}

TEST_F(Owner, LeavesNothingBehind) {
  { const DirectoryOwner first(out_, terms(true)); }
  EXPECT_FALSE(fs::exists(directory_.path() / "runs"));
  fs::create_directories(out_);
  { const DirectoryOwner again(out_, terms(false)); }
  EXPECT_TRUE(fs::is_empty(out_));
  EXPECT_EQ(taken_from_, "");
}

TEST_F(Owner, WhoWasKilledHoldsNothing) {
  for (const bool locks_hold : {true, false}) {
    int held[2];
    ASSERT_EQ(pipe(held), 0);
    const pid_t child = fork();
    if (child == 0) {
      const DirectoryOwner owner(out_, terms(locks_hold));
      if (write(held[1], "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    char byte = 0;
    ASSERT_EQ(read(held[0], &byte, 1), 1);
    EXPECT_TRUE(fails_with<UserError>([&] { DirectoryOwner(out_, terms(locks_hold)); }, "a run is going on there"));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string words = fmt::format("process {} on {}", child, own_name());
    { const DirectoryOwner refused(out_, terms(locks_hold)); }
    EXPECT_TRUE(taken_from_.starts_with(words)) << taken_from_;
    taken_from_.clear();
    // Who begins nothing there leaves word of it.
    const std::optional<HeldBy> trace = held_by(out_);
    ASSERT_TRUE(trace);
    EXPECT_TRUE(trace->words.starts_with(words)) << trace->words;
    EXPECT_FALSE(trace->lives);
    {
      DirectoryOwner owner(out_, terms(locks_hold));
      EXPECT_TRUE(taken_from_.starts_with(words)) << taken_from_;
      owner.settle();
    }
    EXPECT_FALSE(held_by(out_));
    taken_from_.clear();
    for (const int end : held) close(end);
  }
}

// Locks that do not reach other hosts leave the beat to decide.
TEST_F(Owner, AHolderOnAnotherHostIsKnownByItsBeat) {
  put_holder("far", 77, 3);
  {
    const DirectoryOwner owner(out_, terms(false));
    EXPECT_EQ(taken_from_, "process 77 on far, since 2026-01-02 03:04:05");
  }
  put_holder("far", 77, 3);
  const pid_t child = fork();
  if (child == 0) {
    std::ofstream file;
    for (int64_t beat = 4;; beat++) {
      usleep(50'000);
      file.open(out_ / ".owner", std::ios::in | std::ios::out);
      file << "far\n77\n2026-01-02 03:04:05\n" << beat << "\nanother start of its kernel\n";
      file.close();
    }
  }
  EXPECT_TRUE(fails_with<UserError>([&] { DirectoryOwner(out_, terms(false)); }, "process 77 on far"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// Both found the directory free: the one that wrote last has it.
TEST_F(Owner, OfTwoThatBeginAtOnceOneGoesOn) {
  const pid_t child = fork();
  if (child == 0) {
    usleep(25'000);  // within the first one's first beat
    put_holder("far", 77, 0);
    _exit(0);
  }
  EXPECT_TRUE(fails_with<UserError>([&] { DirectoryOwner(out_, {false, 0.2, 0.5, {}}); }, "process 77 on far"));
  waitpid(child, nullptr, 0);
}

// It was held up for so long that another took the directory over: it writes nothing more there.
TEST_F(Owner, WhoHasLostTheDirectoryIsToldByWhom) {
  {
    DirectoryOwner owner(out_, terms(false));
    EXPECT_NO_THROW(owner.require_held());
    put_holder("far", 77, 0);
    for (int i = 0; i < 2; i++)
      EXPECT_TRUE(fails_with<DeviceError>([&] { owner.require_held(); },
                                          "process 77 on far, since 2026-01-02 03:04:05, has taken it over"));
  }
  EXPECT_TRUE(fs::exists(out_ / ".owner")) << "which is the other's";
  fs::remove(out_ / ".owner");
  DirectoryOwner owner(out_, terms(true));
  put_holder("far", 77, 0);
  EXPECT_NO_THROW(owner.require_held()) << "where the kernel's lock says who has it";
}

TEST_F(Owner, LocksOfTheFileSystemsOfOneHostHoldForAll) {
  EXPECT_TRUE(kernel_locks_hold("/dev/shm"));
  EXPECT_FALSE(kernel_locks_hold("/proc"));
}

}  // namespace
}  // namespace snug
