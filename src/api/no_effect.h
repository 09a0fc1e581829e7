// Finds options that were asked for and that change nothing, given the others: a line each, from one table.
#pragma once

#include "api/options.h"
#include "data/dataset.h"
#include "plan/lowering/compile.h"

namespace snug {

// Holds what is known when options are checked.
struct Circumstances {
  std::optional<RecordKinds> kinds{};  // of records that were read
  std::optional<Cut> cut{};            // of a job that trains
  const JobSpec* job = nullptr;        //   and that
  bool shows_samples = false;          // in full, as tokenize does
  bool shows_text = false;             // text that is not data, as tokenize --text does
  bool draws_nothing = false;          // without random numbers: eval, and generate without a temperature
  bool evaluates = false;              // eval: nothing is trained
  bool shows_no_image = false;         // generate and chat without --image
  bool reads_no_prompts = false;       // generate without a file of prompts
};

// Returns whether an option is on the command line, or in a job file with a value other than its default.
bool is_asked_for(const JobConfig& options, const OptionSpec& spec);

// Returns the lines.
std::vector<std::string> options_without_effect(const JobConfig& options, const Circumstances& circumstances);

}  // namespace snug
