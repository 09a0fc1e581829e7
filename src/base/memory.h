// What memory this process may still take.
#pragma once

#include <cstdint>

namespace snug {

// Bytes that may still be taken: what the machine has available (/proc/meminfo), or what the control groups of version
// 1 and 2 around this process leave, whichever is less. Page cache that can be dropped counts as free.
uint64_t free_memory();

}  // namespace snug
