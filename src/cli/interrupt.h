// SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGXCPU as a question that the training loop asks after each step.
#pragma once

#include <signal.h>

#include <atomic>
#include <thread>

namespace snug {

// While one exists, a thread waits for these signals and no other receives them: no handler ever runs in the midst of a
// library's code (oneDNN's fp32 products keep data where one would write). To be made before any other thread, which
// would not inherit that. A signal ends the process as if nobody waited for it, until hold(): then the first one is
// noted, and a second one ends; but SIGHUP, which shells send again, and SIGXCPU, which comes each second, are only
// noted. A SIGHUP that was ignored before stays so, as nohup means it. SIGPIPE is ignored while a guard exists: a
// reader that went away ends no run.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  void hold() { holds_ = true; }
  bool interrupted() const { return noted_; }

 private:
  void wait();

  std::atomic<bool> holds_ = false, noted_ = false, over_ = false;
  sigset_t signals_;  // that are waited for
  sigset_t before_;   // what the first thread blocked
  struct sigaction pipe_before_;
  std::thread waiter_;
};

}  // namespace snug
