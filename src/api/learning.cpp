#include "api/learning.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/option_name.h"
#include "model/rope.h"

namespace snug {
namespace {

// Returns the steps of warm-up that the options ask for, whether or not a run has as many.
int64_t wanted_warmup(const JobConfig& options, int64_t steps) {
  constexpr double kDefaultWarmup = 0.03;
  const auto all = static_cast<double>(steps);
  if (options.warmup_steps) return *options.warmup_steps;
  if (options.warmup_ratio) return static_cast<int64_t>(std::ceil(*options.warmup_ratio * all));
  return options.schedule == "constant" ? 0 : static_cast<int64_t>(kDefaultWarmup * all);
}

}  // namespace

double learning_rate(const JobConfig& options) {
  const bool lora = options.method == "lora";
  if (options.objective == "reward") return options.learning_rate.value_or(lora ? 1e-4 : 9e-6);
  if (ObjectiveOptions{.kind = objective_from_name(options.objective)}.learns_replies())
    return options.learning_rate.value_or(lora ? 2e-4 : 1e-5);
  return options.learning_rate.value_or(lora ? 5e-6 : 5e-7);
}

Schedule make_schedule(const JobConfig& options, int64_t steps) {
  Schedule schedule;
  schedule.kind = schedule_from_name(options.schedule);
  schedule.peak = learning_rate(options);
  schedule.total_steps = steps;
  schedule.min_ratio = options.min_learning_rate_ratio;
  schedule.warmup_steps = std::min(wanted_warmup(options, steps), steps - 1);
  schedule.cycles = options.schedule_cycles;
  schedule.power = options.schedule_power;
  const auto decay = static_cast<int64_t>(std::ceil(options.decay_ratio * static_cast<double>(steps)));
  schedule.decay_steps = std::clamp(decay, int64_t{1}, steps - schedule.warmup_steps);
  return schedule;
}

std::vector<std::string> evaluation_notes(const PackingReport& report, const JobConfig& options,
                                          std::string_view name) {
  const std::string text = left_out_text(report, packing_options(options));
  return text.empty() ? std::vector<std::string>() : std::vector{fmt::format("{}: {}", name, text)};
}

std::vector<std::string> position_notes(int64_t tokens, std::string_view option, const ModelSpec& model) {
  std::vector<std::string> notes;
  if (tokens > model.positions)
    notes.push_back(
        fmt::format("{} {} is beyond the {} positions that the model was made for", option, tokens, model.positions));
  for (const RopeParameters& rope : {model.rope, model.local_rope})
    if (is_long(rope, tokens))
      notes.push_back(
          fmt::format("{} {} is beyond {}: positions of all texts are rotated as rope type {} has it for "
                      "long ones",
                      option, tokens, rope.original_max_position, name(rope.type)));
  return notes;
}

std::vector<std::string> learning_notes(const BlockStream& stream, const ModelSpec& model, const JobConfig& options) {
  std::vector<std::string> notes = evaluation_notes(stream.report(), options, "data");
  std::ranges::move(position_notes(options.sequence_length, option_name("sequence_length"), model),
                    std::back_inserter(notes));
  const int64_t steps = stream.steps();
  if (options.objective == "dpo" && options.label_smoothing == 0 &&
      (options.preference_loss == "cdpo" || options.preference_loss == "robust"))
    notes.push_back(fmt::format("preference_loss {} with label_smoothing 0 is sigmoid", options.preference_loss));
  if (options.objective == "sft" && (options.label_smoothing > 0 || options.z_loss > 0) && !options.validation.empty())
    notes.emplace_back("the held-out loss is the cross-entropy alone, without label smoothing and z-loss");
  if (options.optimizer == "schedule_free_adamw" && options.schedule != "constant")
    notes.push_back(fmt::format(
        "schedule_free_adamw is made for a rate that does not fall: found schedule {}; {} constant with {} does not",
        options.schedule, option_name("schedule"), option_name("warmup_ratio")));
  if (learning_rate(options) == 0)
    notes.emplace_back("learning_rate is 0: steps are taken and measured, and nothing is learnt");
  if (const int64_t wanted = wanted_warmup(options, steps); wanted >= steps)
    notes.push_back(
        fmt::format("a warm-up of {} steps was asked for; of the run's {} it takes {}, so that the last has "
                    "the whole learning rate",
                    wanted, steps, steps - 1));
  constexpr int64_t kFew = 50;
  if (steps < kFew)
    notes.push_back(
        fmt::format("{} few for a learning rate to rise and fall; a {} makes more",
                    steps == 1 ? "1 step is" : fmt::format("{} steps are", steps),
                    options.max_steps ? "larger " + option_name("max_steps") : "smaller " + option_name("batch_size")));
  return notes;
}

}  // namespace snug
