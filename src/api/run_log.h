// What is told of a run: events for programs, lines for people. docs/runs.md lists the events with their fields.
#pragma once

#include <optional>

#include "api/run.h"
#include "base/event.h"
#include "train/event_command.h"

namespace snug {

// Says a line for people, which a log in JSON has as a note.
void log_line(const std::string& line);
// Says a line for people alone: an event tells programs the same.
void log_line_for_people(const std::string& line);

// Returns {"event": "plan", ...}: what the run is about to take, in short.
Event plan_event(const Plan& plan);

// Returns {"event": "warning", ...} of a step, with the places of its samples if they may be the reason.
Event warning_event(int64_t step, const std::string& message, const std::vector<std::string>& samples);
// Says it for people, with twenty of the samples at most.
void log_warning(const std::string& message, const std::vector<std::string>& samples);

// Tells the events of a run to the client, to the command of on_event and, where it is JSON, to the log. Rank 0 alone
// has one that tells.
class RunTeller {
 public:
  RunTeller(const RunEvents& events, bool tells) : events_(events), tells_(tells) {}
  // Starts the command of on_event; none if it is empty.
  void start(const std::string& command);
  void tell(const Event& event);
  // Tells what the log has in another form, or less often.
  void tell_unlogged(const Event& event);
  // Waits for the command, for some time.
  void end();

 private:
  const RunEvents& events_;
  const bool tells_;
  std::optional<EventCommand> command_;
};

}  // namespace snug
