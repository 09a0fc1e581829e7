// Shows what snug doctor measured on a machine.
#pragma once

#include <string>

#include "plan/forecast/machine.h"

namespace snug {

// Returns a table for a terminal: memory, disk, GPUs; and a column of rates for each team of threads, and for a GPU.
std::string machine_text(const Machine& machine);

}  // namespace snug
