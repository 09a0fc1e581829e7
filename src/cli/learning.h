// What a run learns from, and at which rates: the part that plan, train, eval and validation share. That something is
// left to learn from is for the Packer to see, which all of them use.
#pragma once

#include "cli/corpus.h"
#include "train/schedule.h"

namespace snug {

// --learning-rate, or the method's own.
double learning_rate(const Options& options);

// The rates of a run of so many steps. Without --warmup-steps and --warmup-ratio the rate rises over the first 3 % of
// the steps (none of fewer than 34), and not at all where it is constant. However long a warm-up is asked for, the last
// step has the whole rate.
Schedule make_schedule(const Options& options, int64_t steps);

// What the user should know before such a run starts, a line each: samples that are cut, dropped or left out, a rate of
// 0, a warm-up that was shortened, few steps, blocks beyond the model's positions.
std::vector<std::string> learning_notes(const BlockStream& stream, const ModelSpec& model, const Options& options);

// A line where so many tokens, which an option asks for, are beyond the model's positions.
std::vector<std::string> position_notes(int64_t tokens, std::string_view option, const ModelSpec& model);

// The same of samples that are only evaluated, which the option of this name gives.
std::vector<std::string> evaluation_notes(const PackingReport& report, const Options& options, std::string_view name);

}  // namespace snug
