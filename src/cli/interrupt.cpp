#include "cli/interrupt.h"

#include <csignal>

namespace snug {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t noted = 0;

void note(int signal) {
  noted = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  noted = 0;
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool InterruptGuard::interrupted() const { return noted != 0; }

}  // namespace snug
