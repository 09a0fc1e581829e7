// Reads shell scripts as far as they say which command is run with which words. Nothing is executed: variables that the
// script sets to plain text are followed, everything else that a shell would work out stays unknown, and is said.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace snug {

struct ShellWord {
  std::string text;
  std::string unknown;  // what of it only a shell knows ("$1", "$(nproc)"); empty if the text is all of it
};

struct ShellCommand {
  std::vector<ShellWord> words;
  std::map<std::string, ShellWord> environment;  // what it is given: exported so far, and NAME=value in front of it
  int64_t line = 0;
};

struct ShellScript {
  std::vector<ShellCommand> commands;        // in the order in which they are written, of all branches
  std::map<std::string, std::string> files;  // what here-documents write by `cat > FILE`
};

// Reads line continuations, quotes, comments, here-documents (also those that `read -d ''` puts into a variable),
// arrays, NAME=value, NAME+=value, export, $NAME, ${NAME}, ${NAME:-text} and ${NAME[@]}. A variable that is set within
// if, for, while, case or a function is unknown behind it. Throws UserError with `source` and line for quotes and
// here-documents without an end, and for more than 1 MiB after expansion.
ShellScript read_script(const std::string& text, const std::string& source);

}  // namespace snug
