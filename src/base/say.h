// Lines for a person who may have gone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Writes to standard error. That nobody can read it any more (a pipe's end, a terminal that hung up, a full disk behind
// it) is no error: what a program does is worth more than what it says.
void say(std::string_view text);
// Writes to standard output, at once. That its reader has gone is no error either, where SIGPIPE is ignored; any other
// failure leaves its mark on the stream (std::ferror).
void print(std::string_view text);
void say_lines(const std::vector<std::string>& lines);

}  // namespace snug
