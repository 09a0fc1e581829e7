// Who writes into a directory: one process at a time, on whatever host.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/file_lock.h"

namespace snug {

// Whether a lock of flock() holds for every process that can see the directory. The kernel drops it with the process,
// however that ends. On file systems that hosts share, it may hold on one host alone, or not be there at all.
bool kernel_locks_hold(const std::filesystem::path& directory);

// Holds a directory for this process until it is destroyed, by a lock on the file `.owner` in it, which says who holds
// it. Where locks may not reach other hosts, a thread also counts a beat in the file; a file that names another host is
// then watched for some beats: if they go on, the directory is held, if not, its holder is gone.
class DirectoryOwner {
 public:
  struct Terms {
    bool locks_hold = true;     // as kernel_locks_hold() says
    double beat_seconds = 5;    // between beats, where it does not
    double watch_seconds = 16;  // how long another host's file is watched
    // Called where somebody held the directory who is gone, with "process 4711 on near, since 2026-11-26 00:43:50".
    std::function<void(const std::string&)> took_over = {};
  };

  // Makes the directory if it is not there. UserError that says who holds it; DeviceError where no file can be made.
  DirectoryOwner(const std::filesystem::path& directory, const Terms& terms);
  // Removes the file, and what of the directory's path was made and is still empty.
  ~DirectoryOwner();
  DirectoryOwner(const DirectoryOwner&) = delete;
  DirectoryOwner& operator=(const DirectoryOwner&) = delete;

  // DeviceError that says who has the directory, where another has taken it over while this process was held up. To be
  // called before anything is written there: where locks hold it does nothing, else it reads the file anew.
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
  int fd_ = -1;
  FileLock directory_lock_;
  bool locked_ = false;  // for all who can see the directory
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::mutex looking_;
  std::string taker_;               // who has taken the directory over; empty while nobody has
  std::atomic<bool> lost_ = false;  // somebody has: stays so
  std::thread beating_;
};

}  // namespace snug
