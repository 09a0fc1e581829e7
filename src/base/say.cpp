#include "base/say.h"

#include <stdio_ext.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/event.h"

namespace snug {

namespace {

std::function<void(std::string_view)> sink_of_lines;
std::atomic<LogFormat> format_of_log = LogFormat::Text;

void write(std::string_view text) {
  if (sink_of_lines) return sink_of_lines(text);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::clearerr(stderr);
}

// Returns an event for every line that is not empty.
std::string notes_of(std::string_view text) {
  std::string notes;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) notes += event_line({{"event", "note"}, {"message", text.substr(0, end)}});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return notes;
}

}  // namespace

void say_to(std::function<void(std::string_view)> sink) { sink_of_lines = std::move(sink); }

void say(std::string_view text) {
  if (log_format() == LogFormat::Text) return write(text);
  write(notes_of(text));
}

void set_log_format(LogFormat format) { format_of_log = format; }

LogFormat log_format() { return format_of_log; }

void say_event(const nlohmann::ordered_json& event) {
  if (log_format() == LogFormat::Json) write(event_line(event));
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) == 0 || errno != EPIPE) return;
  __fpurge(stdout);  // else it would be written again at exit, when SIGPIPE may end the process
  std::clearerr(stdout);
}

void say_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) say(line + "\n");
}

}  // namespace snug
