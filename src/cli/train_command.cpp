// Implements snug plan and snug train.
#include <algorithm>
#include <cstdio>

#include "api/kernel_report.h"
#include "api/plan_report.h"
#include "api/run.h"
#include "api/text.h"
#include "base/say.h"
#include "cli/commands.h"
#include "cli/interrupt.h"

namespace snug {

int plan_command(JobConfig options, const CommandFlags& flags) {
  const Plan plan = Job::of_found(std::move(options)).plan();
  say_lines(plan.notes);
  if (flags.json) {
    nlohmann::ordered_json json = plan_json(plan);
    try {
      require_fit(plan);
    } catch (const CapacityError& error) {
      json["reason"] = error.what();
    }
    fmt::print("{}\n", json.dump(2, ' ', false, kReplace));
    return json.contains("reason") ? 3 : 0;
  }
  fmt::print("{}", plan_text(plan));
  if (flags.verbose) fmt::print("{}", kernels_text(plan.planned));
  require_fit(plan);
  return 0;
}

namespace {

nlohmann::ordered_json end_json(const RunResult& end, const JobConfig& options) {
  if (end.references) return {{"out", end.out.string()}, {"steps", 0}, {"references", *end.references}};
  return {{"out", end.out.string()},
          {options.method == "lora" ? "adapter" : "model", end.result.string()},
          {"load_seconds", end.load_seconds},
          {"steps", end.steps},
          {"best_step", end.best_step ? nlohmann::ordered_json(*end.best_step) : nullptr},
          {"ranks", ranks_json(end.ranks)},
          {"loss", end.loss ? nlohmann::ordered_json(*end.loss) : nullptr}};
}

}  // namespace

int train_command(JobConfig options, const CommandFlags& flags) {
  InterruptGuard guard;
  const Job job = Job::of_found(std::move(options));
  const RunResult end = job.run({.planned =
                                     [](const Plan& plan) {
                                       if (log_format() == LogFormat::Text) say(plan_text(plan) + "\n");
                                       say_lines(plan.notes);
                                     },
                                 .starts = [&] { guard.hold(); },
                                 .interrupted = [&] { return guard.interrupted(); }});
  if (flags.json && (end.references || !end.result.empty())) print(to_line(end_json(end, job.config())) + "\n");
  return end.interrupted ? 130 : 0;
}

}  // namespace snug
