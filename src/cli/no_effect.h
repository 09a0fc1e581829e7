// Options that somebody asked for and that change nothing, as others are as they are: a line each, from one table.
#pragma once

#include "cli/options.h"
#include "data/dataset.h"
#include "plan/spec/arrangement.h"

namespace snug {

// What is known where options are looked at.
struct Circumstances {
  std::optional<RecordKinds> kinds{};  // of records that were read
  std::optional<Cut> cut{};            // of a job that trains
  bool shows_samples = false;          // whole, as tokenize does
  bool shows_text = false;             // which is no data, as tokenize --text does
  bool draws_nothing = false;          // eval; generate without a temperature
};

// What was asked for is on the command line, or stands in a job file with another value than the usual one.
std::vector<std::string> options_without_effect(const Options& options, const Circumstances& circumstances);

}  // namespace snug
