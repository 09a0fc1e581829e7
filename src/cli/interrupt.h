// Turns SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGXCPU into a question that the training loop asks after each step.
#pragma once

#include <signal.h>

#include <atomic>
#include <thread>

namespace snug {

// While one exists, a thread waits for these signals and no other receives them, so that no handler runs inside a
// library's code (oneDNN's fp32 products keep data where one would write). It must be made before any other thread,
// which would not inherit the mask. A signal ends the process as if no thread waited for it, until hold(): then the
// first one is noted, and a second one ends the process; but SIGHUP, which shells send again, and SIGXCPU, which comes
// each second, are only noted. A SIGHUP that was ignored before stays ignored, as nohup intends. SIGPIPE is ignored
// while a guard exists: a reader that went away ends no run.
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
  sigset_t signals_;  // those that the thread waits for
  sigset_t before_;   // the first thread's mask before
  struct sigaction pipe_before_;
  std::thread waiter_;
};

}  // namespace snug
