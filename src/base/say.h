// Writes lines for a person who may have gone, or for the program that reads a log.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Writes to standard error. It is no error if nobody can read that any more (a pipe's end, a terminal that hung up, a
// full disk behind it): what a program does is worth more than what it says.
void say(std::string_view text);
// Hands what say() is given to a function instead, which may be called by several threads; an empty one gives it back
// to standard error. A library's client calls it before a job.
void say_to(std::function<void(std::string_view)> sink);
// Writes to standard output, at once. If SIGPIPE is ignored, it is no error that its reader has gone; any other failure
// is marked on the stream (std::ferror).
void print(std::string_view text);
void say_lines(const std::vector<std::string>& lines);

// Shows a line at the bottom of a terminal, cut to its width, below all lines that are said until another one is shown;
// an empty one ends that. Nothing is shown in a pipe, to a sink and in a JSON log.
void show_status(std::string_view line);
// Returns whether such a line is shown.
bool shows_status();

// Says in which form all of this process is said: as it is; or a JSON object a line, events as they are (base/event.h)
// and every line of other text as {"event": "note", "message": LINE}. It is set before a job.
enum class LogFormat : uint8_t { Text, Json };
void set_log_format(LogFormat format);
LogFormat log_format();
// Says an event if the log is JSON; people read of it in other words.
void say_event(const nlohmann::ordered_json& event);

}  // namespace snug
