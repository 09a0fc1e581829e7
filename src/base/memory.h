// What memory this process may still take.
#pragma once

#include <cstdint>
#include <optional>

namespace snug {

// Bytes that may still be taken: what the machine has available (/proc/meminfo), or what the control groups of version
// 1 and 2 around this process leave, whichever is less. Page cache that can be dropped counts as free.
uint64_t free_memory();

// What the machine has, whoever uses it (/proc/meminfo); 0 where that is not known.
uint64_t total_memory();

// The least limit that the control groups around this process set; nothing where none does.
std::optional<uint64_t> group_memory_limit();

// From here on each heap of this process, and each thread may have one, keeps about 1 MiB of what was freed at its
// end: the C library would keep up to 64 MiB in each. Blocks of 128 KiB and more then go back one by one, whatever
// sizes come.
void keep_little_freed_memory();

// Gives the system back what this process has freed, as much as the C library can; it keeps that for later otherwise.
void give_back_freed_memory();

}  // namespace snug
