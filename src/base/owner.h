// Lets one process at a time write into a directory, on whatever host.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/file_lock.h"

namespace snug {

// Returns whether a lock of flock() holds for every process that can see the directory. The kernel drops it with the
// process, however that ends. On file systems that hosts share, it may hold on one host only, or not exist.
bool kernel_locks_hold(const std::filesystem::path& directory);

// Says which process holds a directory, or held it when it was killed.
struct HeldBy {
  int64_t process = 0;
  std::string host;
  std::string words;   // "process 4711 on near, since 2026-11-26 00:43:50"
  bool here = false;   // it was started on this host, which has not been started anew since
  bool lives = false;  // as far as can be seen from here: of another host it is taken to
};
// Returns it; nothing where no process holds the directory, as after each that ended by itself.
std::optional<HeldBy> held_by(const std::filesystem::path& directory);

// Holds a directory for this process until it is destroyed, by a lock on the file `.owner` in it, which says who holds
// it. Where locks may not reach other hosts, a thread also counts a beat in the file; a file that names another host is
// then watched for some beats: if they go on, the directory is held; if not, its holder is gone.
class DirectoryOwner {
 public:
  struct Terms {
    bool locks_hold = true;     // as kernel_locks_hold() returned
    double beat_seconds = 5;    // between beats, if locks do not hold
    double watch_seconds = 16;  // how long another host's file is watched
    // Called if a process held the directory that is gone, with "process 4711 on near, since 2026-11-26 00:43:50".
    std::function<void(const std::string&)> took_over = {};
  };

  // Makes the directory if it does not exist. Throws UserError that says who holds it, or DeviceError if no file can be
  // made.
  DirectoryOwner(const std::filesystem::path& directory, const Terms& terms);
  // Removes the file, and those directories of the path that were made and are still empty. Unless settle() was called,
  // it leaves the file of a process that is gone without having ended its run, as held_by() tells of that then.
  ~DirectoryOwner();
  DirectoryOwner(const DirectoryOwner&) = delete;
  DirectoryOwner& operator=(const DirectoryOwner&) = delete;

  // Says that the contents are this process's from now on.
  void settle() { found_.clear(); }

  // Throws DeviceError that says who has the directory, if another process has taken it over while this one was
  // suspended. It must be called before anything is written there: if locks hold it does nothing, else it reads the
  // file anew.
  void require_held();

 private:
  void lock(const Terms& terms);
  void refuse_if_held(const Terms& terms);
  void refuse_if_another_was_later(double beat_seconds) const;
  void write(int64_t beat) const;
  void go_on_beating(double seconds);
  bool look_who_holds_it();

  std::filesystem::path directory_, file_;
  std::filesystem::path made_;  // the topmost directory that was made; empty if none was
  std::string started_;
  std::string found_;  // what the file of a process that is gone held, until settle()
  int fd_ = -1;
  FileLock directory_lock_;
  bool locked_ = false;  // for all processes that can see the directory
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::mutex looking_;
  std::string taker_;               // who has taken the directory over; empty if nobody has
  std::atomic<bool> lost_ = false;  // a process has taken it over; stays true
  std::thread beating_;
};

}  // namespace snug
