// Ends the program in error: one line on standard error, and an exit code that says whose error it is.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace snug {

enum ExitCode { kDone = 0, kInternal = 1, kUser = 2, kDoesNotFit = 3, kMachine = 4 };

// Returns the message for std::bad_alloc, which counts as a job that does not fit: it names the limit that leaves
// least.
std::string no_more_memory();

// Makes std::bad_alloc that no code can catch, as it is thrown on a thread of its own or below a function that may not
// throw, end the process with its line and exit code too.
void end_in_words();

// Prints "snug: ..." as one line of UTF-8, whatever bytes of foreign files are quoted in it; returns the code.
int fail(ExitCode code, std::string_view text);
// Prints the line for what was thrown, and returns its code.
int fail(const std::exception_ptr& error);

}  // namespace snug
