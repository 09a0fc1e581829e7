// What memory this process may still take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug {

// What bounds memory here, and what it leaves in bytes.
struct MemoryLimit {
  enum class Of : uint8_t {
    Machine,  // MemAvailable of /proc/meminfo
    Group,    // a control group around this process, of version 1 or 2
    Process   // the address space of this process, or its data (RLIMIT_AS, RLIMIT_DATA)
  };
  Of of = Of::Machine;
  std::string name;  // "the machine", "/sys/fs/cgroup/a/memory.max", "ulimit -v"
  uint64_t limit = 0, left = 0;
};
// Those in force, the machine's first. Page cache that can be dropped counts as left. Swap counts for nothing, and what
// a group is slowed down beyond (memory.high) is a limit as what its processes are killed beyond.
std::vector<MemoryLimit> memory_limits();

// Whether this process's own limits leave so many bytes. Costs little where there are none.
bool process_limits_leave(uint64_t bytes);

// Bytes that may still be taken: the least that is left.
uint64_t free_memory();

// What the machine has, whoever uses it (/proc/meminfo); 0 where that is not known.
uint64_t total_memory();

// The least limit that the control groups around this process set; nothing where none does.
std::optional<uint64_t> group_memory_limit();

// From here on each heap of this process, and each thread may have one, keeps about 1 MiB of what was freed at its
// end: the C library would keep up to 64 MiB in each. Blocks of 128 KiB and more then go back one by one, whatever
// sizes come. Where the address space is limited (ulimit -v) all threads share one heap: each of their own would
// reserve 128 MiB of it.
void keep_little_freed_memory();

// Gives the system back what this process has freed, as much as the C library can; it keeps that for later otherwise.
void give_back_freed_memory();

}  // namespace snug
