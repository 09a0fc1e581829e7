// Says what a run learns from, and at which rates: the part that plan, train, eval and validation share. The Packer,
// which all of them use, checks that something is left to learn from.
#pragma once

#include "api/corpus.h"
#include "train/schedule.h"

namespace snug {

// Returns --learning-rate, or the method's default.
double learning_rate(const JobConfig& options);

// Returns the rates of a run of `steps` steps. Without --warmup-steps and --warmup-ratio the rate rises over the first
// 3 % of the steps (none of fewer than 34), and not at all if it is constant. However long a warm-up is asked for, the
// last step has the whole rate.
Schedule make_schedule(const JobConfig& options, int64_t steps);

// Returns what the user should know before such a run starts, a line each: samples that are cut, dropped or left out, a
// rate of 0, a warm-up that was shortened, few steps, blocks beyond the model's positions.
std::vector<std::string> learning_notes(const BlockStream& stream, const ModelSpec& model, const JobConfig& options);

// Returns a line if an option asks for more tokens than the model has positions.
std::vector<std::string> position_notes(int64_t tokens, std::string_view option, const ModelSpec& model);

// Returns such lines for samples that are only evaluated, which the option of this name gives.
std::vector<std::string> evaluation_notes(const PackingReport& report, const JobConfig& options, std::string_view name);

}  // namespace snug
