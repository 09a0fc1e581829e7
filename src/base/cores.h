// Counts the cores that this process may use.
#pragma once

namespace snug {

// Returns how many cores threads that begin here may use: those to which this thread is bound (taskset, a container's
// set), or as many as the control groups of version 1 and 2 around the process give time for, rounded up; whichever are
// fewer.
int usable_cores();

}  // namespace snug
