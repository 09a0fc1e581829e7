#include "cli/interrupt.h"

#include <initializer_list>

namespace snug {
namespace {

bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// Returns the signals that interrupt. mpirun passes on SIGUSR1; at the others it kills.
sigset_t interrupting() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGXCPU}) sigaddset(&signals, signal);
  if (!is_ignored(SIGHUP)) sigaddset(&signals, SIGHUP);
  return signals;
}

}  // namespace

InterruptGuard::InterruptGuard() : signals_(interrupting()) {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  waiter_ = std::thread([this] { wait(); });
}

InterruptGuard::~InterruptGuard() {
  over_ = true;
  pthread_kill(waiter_.native_handle(), SIGTERM);
  waiter_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  sigaction(SIGPIPE, &pipe_before_, nullptr);
}

void InterruptGuard::wait() {
  for (int signal = 0; sigwait(&signals_, &signal) == 0 && !over_;) {
    const bool only_noted = signal == SIGHUP || signal == SIGXCPU;
    if (holds_ && (!noted_.exchange(true) || only_noted)) continue;
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
    raise(signal);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);  // ignored: a shell does so for background jobs
  }
}

}  // namespace snug
