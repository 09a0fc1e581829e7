// How the program ends in error: one line on standard error, and an exit code that says whose it is.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace snug {

enum ExitCode { kDone = 0, kInternal = 1, kUser = 2, kDoesNotFit = 3, kMachine = 4 };

// What is said of std::bad_alloc, which ends a program as what does not fit: with the limit that leaves least.
std::string no_more_memory();

// From here on std::bad_alloc that nobody can catch, as it is thrown on a thread of its own or beneath what may not
// throw, ends the process with its line and exit code too.
void end_in_words();

// Prints "snug: ..." as one line of UTF-8, whatever bytes of foreign files are quoted in it; returns the code.
int fail(ExitCode code, std::string_view text);
// The same of what was thrown.
int fail(const std::exception_ptr& error);

}  // namespace snug
