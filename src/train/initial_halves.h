// Writes the file of the halves with which a job's adapters begin (plan/spec/initial_file.h).
#pragma once

#include "plan/lowering/compile.h"

namespace snug {

// Computes them of the base's linears, one after the other, each in fp32 in memory.
void write_initial_halves(const JobSpec& spec, const std::filesystem::path& file, const Heartbeat& heartbeat);

}  // namespace snug
