// Lines for a person who may have gone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Writes to standard error. That nobody can read it any more (a pipe's end, a terminal that hung up, a full disk behind
// it) is no error: what a program does is worth more than what it says.
void say(std::string_view text);
void say_lines(const std::vector<std::string>& lines);

}  // namespace snug
