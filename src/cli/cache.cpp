#include "cli/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

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

fs::path cache_directory(const Options& options, std::string_view why) {
  if (!options.cache_dir.empty()) return options.cache_dir;
  for (const auto& [name, folder] : {std::pair("XDG_CACHE_HOME", "snug"), std::pair("HOME", ".cache/snug")})
    if (const char* value = std::getenv(name); value && *value) return fs::path(value) / folder;
  user_error(
      "{}, and there is no home directory to keep the model in that is made of it; --cache-dir "
      "names one",
      why);
}

FileLock FileLock::alone(const fs::path& file) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error)
    user_error("{}: cannot be made ({}); --cache-dir names another", file.parent_path().string(), error.message());
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock(descriptor, LOCK_EX)) return FileLock(descriptor);
  const int failed = errno;
  if (descriptor >= 0) ::close(descriptor);
  user_error("{}: cannot be locked ({}); --cache-dir names another directory", file.string(), std::strerror(failed));
}

FileLock FileLock::of_directory(const fs::path& directory, int kind) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock(descriptor, kind | LOCK_NB)) return FileLock(descriptor);
  if (descriptor >= 0) ::close(descriptor);
  return {};
}

FileLock FileLock::in_use(const fs::path& directory) { return of_directory(directory, LOCK_SH); }

FileLock FileLock::unused(const fs::path& directory) { return of_directory(directory, LOCK_EX); }

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace snug
