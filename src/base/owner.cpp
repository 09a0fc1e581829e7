#include "base/owner.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/clock.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/option_name.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 1024;

// Describes what `.owner` holds, a word a line: the host, the process, when it started (in the host's local time), how
// often it has shown that it goes on, and what the host's kernel drew when it started, as hosts may share a name.
struct Holder {
  std::string host, started, boot;
  int64_t process = 0, beat = 0;
  bool is(const Holder& other) const {
    return host == other.host && boot == other.boot && process == other.process && started == other.started;
  }
  std::string words() const { return fmt::format("process {} on {}, since {}", process, host, started); }
};

std::string own_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "a host without a name";
  return name.data();
}

std::string own_boot() {
  std::string drawn;  // stays empty if a container does not show it
  std::ifstream("/proc/sys/kernel/random/boot_id") >> drawn;
  return drawn;
}

// Returns what a file holds of a process. It always has as many bytes.
std::string text_of(const Holder& holder) {
  std::string text =
      fmt::format("{}\n{}\n{}\n{}\n{}\n", holder.host, holder.process, holder.started, holder.beat, holder.boot);
  text.resize(kMostBytes, '\n');
  return text;
}

Holder this_process(const std::string& started) {
  return {.host = own_host(), .started = started, .boot = own_boot(), .process = getpid()};
}

std::optional<int64_t> number_in(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Returns the holder that a file names; nothing if the file is empty or of another kind.
std::optional<Holder> read_holder(int fd) {
  std::array<char, kMostBytes> bytes{};
  const ssize_t count = pread(fd, bytes.data(), bytes.size(), 0);
  if (count <= 0) return std::nullopt;
  std::istringstream lines(std::string(bytes.data(), static_cast<size_t>(count)));
  Holder holder;
  std::string process, beat;
  if (!std::getline(lines, holder.host) || !std::getline(lines, process) || !std::getline(lines, holder.started) ||
      !std::getline(lines, beat))
    return std::nullopt;
  const auto number = number_in(process), beats = number_in(beat);
  if (!number || !beats) return std::nullopt;
  std::getline(lines, holder.boot);
  holder.process = *number;
  holder.beat = *beats;
  return holder;
}

// Returns whether a process of this host has ended; its parent may not have asked for its end yet.
bool has_ended(int64_t process) {
  if (kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return true;
  std::string about;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", process)), about);
  const size_t name_end = about.rfind(") ");
  return name_end != about.npos && name_end + 2 < about.size() &&
         (about[name_end + 2] == 'Z' || about[name_end + 2] == 'X');
}

[[noreturn]] void refuse(const fs::path& directory, const std::optional<Holder>& holder) {
  user_error("{}: a run is going on there: {}; it can be ended, or {} names another directory", directory.string(),
             holder ? holder->words() : "a process that has just begun", option_name("out"));
}

}  // namespace

bool kernel_locks_hold(const fs::path& directory) {
  struct statfs about {};
  if (statfs(existing_part(directory).c_str(), &about) != 0) return false;
  constexpr std::array<uint32_t, 8> kOfThisHost{EXT4_SUPER_MAGIC,     0x58465342 /* XFS */, BTRFS_SUPER_MAGIC,
                                                F2FS_SUPER_MAGIC,     TMPFS_MAGIC,          OVERLAYFS_SUPER_MAGIC,
                                                0x2fc12fc1 /* ZFS */, RAMFS_MAGIC};
  for (const uint32_t type : kOfThisHost)
    if (static_cast<uint32_t>(about.f_type) == type) return true;
  return false;
}

std::optional<HeldBy> held_by(const fs::path& directory) {
  const int fd = open((directory / ".owner").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  const std::optional<Holder> holder = read_holder(fd);
  const bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  if (!holder) return std::nullopt;
  HeldBy held{.process = holder->process, .host = holder->host, .words = holder->words()};
  held.here = holder->host == own_host() && holder->boot == own_boot();
  const bool gone = held.here ? has_ended(holder->process) : kernel_locks_hold(directory);
  held.lives = locked || !gone;
  return held;
}

DirectoryOwner::DirectoryOwner(const fs::path& directory, const Terms& terms)
    : directory_(directory), file_(directory / ".owner"), started_(local_time()) {
  for (fs::path path = fs::absolute(directory); !fs::exists(path); path = path.parent_path()) made_ = path;
  fs::create_directories(directory_);
  lock(terms);
  try {
    refuse_if_held(terms);
    write(0);
    if (!locked_) refuse_if_another_was_later(terms.beat_seconds);
  } catch (...) {
    close(fd_);
    throw;
  }
  if (!locked_) beating_ = std::thread([this, seconds = terms.beat_seconds] { go_on_beating(seconds); });
}

// Opens the file and locks it. A process that ends removes the file, so the lock may turn out to be on a removed one;
// then it starts again.
void DirectoryOwner::lock(const Terms& terms) {
  while (true) {
    fs::create_directories(directory_);
    fd_ = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno == ENOENT) continue;
    if (fd_ < 0) device_error("{}: cannot be made: {}", file_.string(), std::strerror(errno));
    locked_ = flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (!locked_ && errno == EWOULDBLOCK) {
      const std::optional<Holder> holder = read_holder(fd_);
      close(fd_);
      refuse(directory_, holder);
    }
    struct stat opened {
    }, there{};
    if (fstat(fd_, &opened) == 0 && stat(file_.c_str(), &there) == 0 && opened.st_ino == there.st_ino) break;
    close(fd_);
  }
  locked_ = locked_ && terms.locks_hold;
  if (!locked_) return;
  // The directory itself is locked too, as people remove files that look left over.
  directory_lock_ = FileLock::unused(directory_);
  if (!directory_lock_.holds() && FileLock::is_used(directory_)) {
    unlink(file_.c_str());
    close(fd_);
    user_error(
        "{}: a run is going on there, whose file .owner was removed; it can be ended, or {} names another directory",
        directory_.string(), option_name("out"));
  }
}

// Refuses a directory that another process holds. The kernel has granted the lock; where locks do not reach all hosts,
// the process that the file names is watched for a while, unless it was one of this host that is gone.
void DirectoryOwner::refuse_if_held(const Terms& terms) {
  const std::optional<Holder> before = read_holder(fd_);
  if (!before) return;
  const bool here = before->host == own_host() && before->boot == own_boot();
  const bool gone = here && has_ended(before->process);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(terms.watch_seconds);
  while (!locked_ && !gone && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::duration<double>(terms.beat_seconds / 10));
    const std::optional<Holder> now = read_holder(fd_);
    if (now && (!now->is(*before) || now->beat != before->beat)) refuse(directory_, now);
  }
  found_ = text_of(*before);
  if (terms.took_over) terms.took_over(before->words());
}

// If several processes begin at once where locks do not reach, the last to write has the directory.
void DirectoryOwner::refuse_if_another_was_later(double beat_seconds) const {
  std::this_thread::sleep_for(std::chrono::duration<double>(beat_seconds));
  const std::optional<Holder> now = read_holder(fd_);
  if (!now || !now->is(this_process(started_))) refuse(directory_, now);
}

// Writes in one call and always the same number of bytes, so that no process finds the file empty.
void DirectoryOwner::write(int64_t beat) const {
  Holder own = this_process(started_);
  own.beat = beat;
  const std::string text = text_of(own);
  if (pwrite(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) || fdatasync(fd_) != 0)
    device_error("{}: cannot be written: {}", file_.string(), std::strerror(errno));
}

// Returns whether another process has taken the directory over.
bool DirectoryOwner::look_who_holds_it() {
  const std::lock_guard lock(looking_);
  if (lost_) return true;
  const std::optional<Holder> now = read_holder(fd_);
  if (!now || now->is(this_process(started_))) return false;
  taker_ = now->words();
  lost_ = true;
  return true;
}

void DirectoryOwner::require_held() {
  if (locked_ || !look_who_holds_it()) return;
  device_error("{}: {}, has taken it over, as this process gave no sign of life; nothing more is written there",
               directory_.string(), taker_);
}

// Beats until the end, or until another process has taken the directory over while this one was suspended.
void DirectoryOwner::go_on_beating(double seconds) {
  std::unique_lock lock(mutex_);
  for (int64_t beat = 1; !ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return over_; }); beat++)
    try {
      if (look_who_holds_it()) return;
      write(beat);
    } catch (const DeviceError&) {  // the run itself will meet a full disk
    }
}

DirectoryOwner::~DirectoryOwner() {
  if (beating_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    beating_.join();
  }
  const bool left =
      !lost_ && !found_.empty() && pwrite(fd_, found_.data(), found_.size(), 0) == static_cast<ssize_t>(found_.size());
  if (!lost_ && !left) unlink(file_.c_str());
  close(fd_);
  if (made_.empty() || lost_) return;
  std::error_code ignored;
  for (fs::path path = fs::absolute(directory_);; path = path.parent_path()) {
    if (!fs::remove(path, ignored) || path == made_) return;  // only if it is empty
  }
}

}  // namespace snug
