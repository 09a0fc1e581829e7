// Lists the commands, with the options that each takes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace snug {

struct Command {
  std::string name, help;
  std::optional<std::vector<std::string>> options;  // keys that it takes; none given: all
  std::function<int(const JobConfig&, const CommandFlags&)> run;
  bool needs_model = true;
  bool on_ranks = false;  // whether several ranks may run it

  bool takes(const std::string& key) const;
};

// Returns the commands in the order of the help page.
const std::vector<Command>& commands();

}  // namespace snug
