// Writes lines for a person who may have gone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Writes to standard error. It is no error if nobody can read that any more (a pipe's end, a terminal that hung up, a
// full disk behind it): what a program does is worth more than what it says.
void say(std::string_view text);
// Writes to standard output, at once. If SIGPIPE is ignored, it is no error that its reader has gone; any other failure
// is marked on the stream (std::ferror).
void print(std::string_view text);
void say_lines(const std::vector<std::string>& lines);

}  // namespace snug
