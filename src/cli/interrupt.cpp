#include "cli/interrupt.h"

namespace snug {
namespace {

// SIGUSR1 is what mpirun passes on: at the others it kills.
sigset_t interrupting() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  const sigset_t signals = interrupting();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  waiter_ = std::thread([this] { wait(); });
}

InterruptGuard::~InterruptGuard() {
  over_ = true;
  pthread_kill(waiter_.native_handle(), SIGTERM);
  waiter_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void InterruptGuard::wait() {
  const sigset_t signals = interrupting();
  for (int signal = 0; sigwait(&signals, &signal) == 0 && !over_;) {
    if (holds_ && !noted_.exchange(true)) continue;
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    raise(signal);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // it is ignored, as under nohup
  }
}

}  // namespace snug
