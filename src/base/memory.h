// Finds out how much memory this process may still take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug {

// Says what bounds memory here, with its limit and what it leaves, in bytes.
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
// Returns the limits in force, the machine's first. Page cache that can be dropped counts as left. Swap does not count,
// and a limit beyond which a group is slowed down (memory.high) counts like one beyond which its processes are killed.
std::vector<MemoryLimit> memory_limits();

// Returns whether this process's own limits leave this many bytes. Costs little if there are none.
bool process_limits_leave(uint64_t bytes);

// Returns the bytes that may still be taken: the least that any limit leaves.
uint64_t free_memory();

// Returns the machine's memory, whoever uses it (/proc/meminfo); 0 if that is not known.
uint64_t total_memory();

// Returns the bytes of this process that are in memory, as the kernel counts them (/proc/self/statm); 0 if that is not
// known.
uint64_t resident_memory();

// Returns the least limit that the control groups around this process set; nothing if none does.
std::optional<uint64_t> group_memory_limit();

// Makes each heap of this process, of which each thread may have one, keep only about 1 MiB of what was freed at its
// end: the C library would keep up to 64 MiB in each. Blocks of 128 KiB and more then go back one by one, in whatever
// order sizes come. Where the address space is limited (ulimit -v) all threads share one heap, as each of their own
// would reserve 128 MiB of it.
void keep_little_freed_memory();

// Gives the system back what this process has freed, as far as the C library can, which otherwise keeps it for later.
void give_back_freed_memory();

}  // namespace snug
