// Writes lines for a person who may have gone.
#pragma once

#include <functional>
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

}  // namespace snug
