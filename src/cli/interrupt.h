// SIGINT and SIGTERM as a question that the training loop asks after each step.
#pragma once

namespace snug {

// While one exists, the first SIGINT or SIGTERM is noted; a second one ends the process as if there were no handler. To
// be made on the first thread: it is the one that a process's signals reach.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  bool interrupted() const;
};

}  // namespace snug
