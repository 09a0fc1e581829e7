// Stands before the C library in the test program snug_full_disk: from call number SNUG_FULL_AT on (from 1), all calls
// that may take room on a disk fail as on a full one.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace {

bool full() {
  static std::atomic<long> calls = 0;
  static const char* const at = std::getenv("SNUG_FULL_AT");
  if (!at || ++calls < std::atol(at)) return false;
  errno = ENOSPC;
  return true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* bytes, size_t count) {
  if (descriptor > STDERR_FILENO && full()) return -1;
  static const auto real = next<ssize_t(int, const void*, size_t)>("write");
  return real(descriptor, bytes, count);
}

ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  if (full()) return -1;
  static const auto real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return real(descriptor, bytes, count, offset);
}

int posix_fallocate(int descriptor, off_t offset, off_t count) {
  if (full()) return ENOSPC;
  static const auto real = next<int(int, off_t, off_t)>("posix_fallocate");
  return real(descriptor, offset, count);
}

int fsync(int descriptor) {
  if (full()) return -1;
  static const auto real = next<int(int)>("fsync");
  return real(descriptor);
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (full()) return -1;
  static const auto real = next<int(const char*, mode_t)>("mkdir");
  return real(path, mode);
}

int rename(const char* from, const char* to) noexcept {
  if (full()) return -1;
  static const auto real = next<int(const char*, const char*)>("rename");
  return real(from, to);
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (flags & O_CREAT && full()) return -1;
  static const auto real = next<int(const char*, int, ...)>("open");
  return real(path, flags, mode);
}

}  // extern "C"
