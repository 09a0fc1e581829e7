// Names the options of a job in messages, as their reader knows them.
#pragma once

#include <string>
#include <string_view>

namespace snug {

// Returns the name of an option for a message: "max_steps", the field of a JobConfig, or "--max-steps" in a process
// that is a command line.
std::string option_name(std::string_view field);

// Says that this process is a command line, whose users know options by their flags. It decides words of messages and
// nothing else; main() calls it before there are threads.
void name_options_as_flags();

}  // namespace snug
