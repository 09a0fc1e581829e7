#include "train/event_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace snug {
namespace {

using Clock = std::chrono::steady_clock;

// In the command nothing is blocked or ignored that is here.
void set_signals(posix_spawnattr_t& attributes) {
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGXCPU, SIGPIPE, SIGXFSZ}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
}

// Returns 0 or an error's number.
int start(const std::string& command, int input, pid_t& child) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  set_signals(attributes);
  const char* words[] = {"sh", "-c", command.c_str(), nullptr};
  const int error = posix_spawn(&child, "/bin/sh", &actions, &attributes, const_cast<char**>(words), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

std::string ending_text(int status) {
  return WIFEXITED(status) ? fmt::format("ended with exit code {}", WEXITSTATUS(status))
                           : fmt::format("was ended by signal {}", WTERMSIG(status));
}

}  // namespace

EventCommand::EventCommand(std::string command, Terms terms) : command_(std::move(command)), terms_(std::move(terms)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) device_error("on_event: no pipe can be made: {}", std::strerror(errno));
  const int error = start(command_, ends[0], child_);
  ::close(ends[0]);
  input_ = ends[1];
  if (error == 0 && fcntl(input_, F_SETFL, O_NONBLOCK) == 0) return;
  ::close(input_);
  device_error("on_event: '{}' cannot be started: {}", command_, std::strerror(error != 0 ? error : errno));
}

EventCommand::~EventCommand() {
  if (input_ >= 0) ::close(input_);
  reap();
}

void EventCommand::send(const Event& event) {
  if (input_ < 0) return;
  waiting_ += event_line(event);
  if (write_waiting() && waiting_.size() > terms_.most_waiting)
    drop(fmt::format("has {} bytes of events to read", waiting_.size()));
}

void EventCommand::end() {
  const auto last = Clock::now() + std::chrono::duration<double>(terms_.patience_seconds);
  const auto left = [&] { return std::chrono::duration<double>(last - Clock::now()).count(); };
  while (input_ >= 0 && write_waiting() && !waiting_.empty()) {
    pollfd ready{input_, POLLOUT, 0};
    if (left() <= 0) return drop(fmt::format("has {} bytes of events to read", waiting_.size()));
    poll(&ready, 1, 10);
  }
  if (input_ < 0) return;  // which was said
  ::close(std::exchange(input_, -1));
  while (!reap() && left() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (child_ >= 0)
    terms_.say(fmt::format("on_event: '{}' has been told everything and still runs: it is left to itself", command_));
  else if (status_ != 0)
    terms_.say(fmt::format("on_event: '{}' {}", command_, ending_text(status_)));
}

// Writes what the pipe takes. Returns whether the command may get more.
bool EventCommand::write_waiting() {
  while (!waiting_.empty()) {
    const ssize_t count = ::write(input_, waiting_.data(), waiting_.size());
    if (count >= 0) {
      waiting_.erase(0, static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      return true;
    } else if (errno != EINTR) {
      // A process that goes closes its input a moment before it has ended.
      for (int i = 0; i < 20 && !reap(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      drop(child_ < 0 ? ending_text(status_) : "has closed its input");
      return false;
    }
  }
  return true;
}

// Returns whether the command has ended.
bool EventCommand::reap() {
  if (child_ >= 0 && waitpid(child_, &status_, WNOHANG) == child_) child_ = -1;
  return child_ < 0;
}

void EventCommand::drop(const std::string& why) {
  ::close(std::exchange(input_, -1));
  waiting_.clear();
  terms_.say(fmt::format("on_event: '{}' {}: it gets no more events, the run goes on", command_, why));
}

}  // namespace snug
