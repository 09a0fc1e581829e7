// Writes the file of the rows with which new tokens begin (plan/spec/initial_file.h).
#pragma once

#include "plan/lowering/compile.h"

namespace snug {

// Computes them of the rows that the model's files have of other tokens. The job's sources have such a file.
void write_initial_rows(const JobSpec& spec, const std::filesystem::path& file);

}  // namespace snug
