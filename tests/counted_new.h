// Counts what a test program allocates; link counted_new.cpp.
#pragma once

#include <cstdint>

namespace snug {

// Calls of operator new so far, by all threads.
int64_t allocations();

}  // namespace snug
