// Writes the table of options (api/options.h) in the forms that people, editors and shells read.
#pragma once

#include <string>
#include <vector>

#include "api/options.h"
#include "cli/command_table.h"

namespace snug {

// Returns an option as command lines spell it: "--learning-rate".
std::string flag_of(const OptionSpec& spec);
// Returns how help pages call a value: "INT", "SIZE"; empty for yes and no.
std::string value_name(const ValueType& type);
// Returns an option's line of a help page: its meaning, its words and, in brackets, what holds where nothing is given.
std::string help_line(const OptionSpec& spec);

// Returns a JSON Schema (draft 2020-12) of job files.
std::string job_schema();

// Returns a page in Markdown: a table of options for each group.
std::string options_page();

// Returns the manual page snug(1), in the language of man (groff_man(7)), of a version and the commands.
std::string man_page(const std::string& version, const std::vector<Command>& commands);

// Holds the flags of a command.
struct CommandWords {
  std::string name;
  std::vector<std::string> flags;
};
// Returns a script that completes commands, flags and words of options in bash.
std::string bash_completion(const std::vector<CommandWords>& commands);

}  // namespace snug
