// Runs the program at a terminal, as a person does.
#pragma once

#include <pty.h>

#include "cli_fixture.h"

namespace snug {

// Runs snug in a directory with a terminal in the place of some streams; `typed` is what a person writes there. Returns
// what the terminal shows until the program ends, which it must do well.
inline std::string run_at_terminal(const fs::path& directory, const Words& words, const std::vector<int>& streams,
                                   const winsize* size = nullptr, const std::string& typed = "") {
  int terminal = -1, end = -1;
  EXPECT_EQ(openpty(&terminal, &end, nullptr, nullptr, size), 0);
  std::vector<char*> arguments{const_cast<char*>(SNUG_BINARY)};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(directory.c_str()) != 0) _exit(126);
    for (const int stream : streams) dup2(end, stream);
    close(terminal);
    close(end);
    execv(SNUG_BINARY, arguments.data());
    _exit(127);
  }
  close(end);
  EXPECT_EQ(write(terminal, typed.data(), typed.size()), std::ssize(typed));
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(terminal, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(count));
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << text;
  return text;
}

}  // namespace snug
