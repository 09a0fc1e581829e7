// Counts open files of this process, and raises their limit.
#pragma once

#include <cstdint>

namespace snug {

// Raises the soft limit of open files (RLIMIT_NOFILE) to the hard one, which a process may do itself. Where the system
// refuses, the limit stays as it is.
void raise_open_file_limit();

struct OpenFiles {
  uint64_t limit = 0, open = 0;  // how many may be open, and are; sockets and the like count too
};
OpenFiles open_files();

}  // namespace snug
