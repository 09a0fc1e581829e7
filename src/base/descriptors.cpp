#include "base/descriptors.h"

#include <sys/resource.h>

#include <filesystem>
#include <iterator>

namespace snug {

void raise_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

OpenFiles open_files() {
  rlimit limit{};
  OpenFiles files{UINT64_MAX, 0};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) files.limit = limit.rlim_cur;
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  files.open = static_cast<uint64_t>(std::distance(begin(open), end(open)));
  return files;
}

}  // namespace snug
