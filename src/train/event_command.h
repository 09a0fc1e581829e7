// A command that is told what a run does (on_event): a JSON object a line on its standard input.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/event.h"

namespace snug {

// Starts the command by `sh -c`, in a process group of its own, so that Ctrl-C is the run's alone; what it prints goes
// to standard error. It never holds up or ends whoever sends: lines that it has not read wait, up to so many bytes;
// where more come, or it ends or closes its input, that is said once, and it gets no more. SIGPIPE is to be ignored.
class EventCommand {
 public:
  struct Terms {
    size_t most_waiting = 1 << 20;  // bytes
    double patience_seconds = 5;    // of end()
    std::function<void(const std::string&)> say = [](const std::string&) {};
  };

  // DeviceError where no process can be started.
  EventCommand(std::string command, Terms terms);
  // Closes its input, and waits for nothing.
  ~EventCommand();
  EventCommand(const EventCommand&) = delete;
  EventCommand& operator=(const EventCommand&) = delete;

  void send(const Event& event);
  // Hands over what waits, closes its input, and gives it some time to end; says where it takes longer, or fails.
  void end();

 private:
  bool write_waiting();
  bool reap();
  void drop(const std::string& why);

  std::string command_;
  Terms terms_;
  std::string waiting_;
  int input_ = -1;    // of the command; -1: it gets no more
  pid_t child_ = -1;  // -1: it has ended
  int status_ = 0;
};

}  // namespace snug
