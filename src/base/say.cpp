#include "base/say.h"

#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/event.h"

namespace snug {

namespace {

std::function<void(std::string_view)> sink_of_lines;
std::atomic<LogFormat> format_of_log = LogFormat::Text;
std::mutex of_status;  // guards what is shown, and in which order
std::string status;

constexpr std::string_view kClearLine = "\r\033[K";

// Returns how many columns the terminal has, or 80 if it does not say.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

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
  if (log_format() == LogFormat::Json) return write(notes_of(text));
  const std::lock_guard lock(of_status);
  if (status.empty()) return write(text);
  write(fmt::format("{}{}{}", kClearLine, text, status));
}

bool shows_status() { return !sink_of_lines && log_format() == LogFormat::Text && isatty(STDERR_FILENO) == 1; }

void show_status(std::string_view line) {
  if (!shows_status()) return;
  const std::lock_guard lock(of_status);
  if (line.empty() && status.empty()) return;
  status = line.substr(0, terminal_columns() - 1);  // the last column would begin a line on some
  write(fmt::format("{}{}", kClearLine, status));
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
