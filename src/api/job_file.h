// Reads and writes job files: options as keys and values of YAML.
#pragma once

#include <string>

#include "api/options.h"

namespace snug {

// Throws UserError for a file of data, or a directory, in the place of a job file.
void refuse_as_job_file(const std::string& path);

// Reads a job file (YAML) into `options`. `columns` and `roles` are maps; lists are lists or text with commas (\, is a
// comma within an item).
void read_job_file(const std::string& path, JobConfig& options);
// Reads the text of a job file.
void parse_job(const std::string& text, const std::string& path, JobConfig& options);

// Returns every option as it took effect, as a job file.
std::string write_job_file(const JobConfig& options);

}  // namespace snug
