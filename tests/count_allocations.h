// Counts allocations of the test program it is linked into.
#pragma once

#include <cstdint>

namespace snug {

// Calls of operator new since the program started, by all threads.
int64_t allocations();
// Of those, the ones whose memory was not given back yet.
int64_t live_allocations();

}  // namespace snug
