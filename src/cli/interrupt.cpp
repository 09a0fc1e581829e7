#include "cli/interrupt.h"

#include <signal.h>

#include <array>
#include <csignal>
#include <cstddef>

namespace snug {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t noted = 0;

// Room for the registers of any processor. oneDNN's fp32 products on the CPU keep data where a handler on the thread's
// own stack would write: the heap does not survive it.
alignas(64) std::array<std::byte, 256 << 10> stack;

void note(int signal) {
  noted = 1;
  std::signal(signal, SIG_DFL);
}

void use_stack(int flags) {
  const stack_t own{.ss_sp = stack.data(), .ss_flags = flags, .ss_size = stack.size()};
  sigaltstack(&own, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  noted = 0;
  use_stack(0);
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  use_stack(SS_DISABLE);
}

bool InterruptGuard::interrupted() const { return noted != 0; }

}  // namespace snug
