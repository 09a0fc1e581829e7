#include "base/say.h"

#include <stdio_ext.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace snug {

namespace {

std::function<void(std::string_view)> sink_of_lines;

}  // namespace

void say_to(std::function<void(std::string_view)> sink) { sink_of_lines = std::move(sink); }

void say(std::string_view text) {
  if (sink_of_lines) return sink_of_lines(text);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::clearerr(stderr);
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
