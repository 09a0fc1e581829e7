#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

bool lock(int descriptor, int kind) {
  int result = -1;
  while (descriptor >= 0 && (result = ::flock(descriptor, kind)) != 0 && errno == EINTR) {
  }
  return result == 0;
}

}  // namespace

FileLock FileLock::alone(const fs::path& file, std::string_view advice, const Heartbeat& heartbeat,
                         const std::function<void()>& waits) {
  constexpr std::chrono::milliseconds kPause(20);
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) user_error("{}: cannot be made ({}){}", file.parent_path().string(), error.message(), advice);
  for (bool waited = false;;) {
    FileLock held(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    const bool locked = lock(held.descriptor_, LOCK_EX | LOCK_NB);
    if (locked && !held.is_removed()) return held;
    if (locked) continue;
    if (held.descriptor_ < 0 || errno != EWOULDBLOCK)
      user_error("{}: cannot be locked ({}){}", file.string(), std::strerror(errno), advice);
    if (!std::exchange(waited, true) && waits) waits();
    call(heartbeat);
    std::this_thread::sleep_for(kPause);
  }
}

// Returns whether the file's holder has removed it since it was opened; the next process makes another.
bool FileLock::is_removed() const {
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 && status.st_nlink == 0;
}

FileLock FileLock::of_directory(const fs::path& directory, int kind) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock(descriptor, kind | LOCK_NB)) return FileLock(descriptor);
  const int failed = errno;
  if (descriptor >= 0) ::close(descriptor);
  errno = failed;
  return {};
}

FileLock FileLock::in_use(const fs::path& directory) { return of_directory(directory, LOCK_SH); }

FileLock FileLock::unused(const fs::path& directory) { return of_directory(directory, LOCK_EX); }

bool FileLock::is_used(const fs::path& directory) {
  return !of_directory(directory, LOCK_EX).holds() && errno == EWOULDBLOCK;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace snug
