// Plans and trains a job: what a client of snug calls, the command line among them. Nothing is printed to standard
// output; lines for people go through say() (base/say.h), whose sink a client may set.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "api/inputs.h"
#include "api/plan.h"
#include "base/file_lock.h"

namespace snug {

// Holds what a client hears of a run, and what it is asked; each may be empty. Rank 0's thread calls `planned` and
// `event`.
struct RunEvents {
  // The plan is made, and nothing of it is taken yet.
  std::function<void(const Plan&)> planned{};
  // {"event": "begin", ...}, then "step", "checkpoint", "end" or "error", as the command of on_event is told.
  std::function<void(const nlohmann::ordered_json&)> event{};
  // The run is about to take what was planned, and may be interrupted from now on; the thread of Job::run() calls it.
  std::function<void()> starts{};
  // Returns whether the run shall end, with a checkpoint, after the step that is going on; any rank's thread calls it.
  std::function<bool()> interrupted{};
};

// Says how a run ended that did not fail.
struct RunResult {
  bool interrupted = false;            // resume goes on from its checkpoint
  std::filesystem::path out;           // its directory
  std::filesystem::path result{};      // the adapter, or the model; empty if interrupted before the first step
  int64_t steps = 0;                   // that are done, those before it was resumed among them
  std::optional<double> loss{};        // of the last step
  std::optional<int64_t> best_step{};  // by best_metric
  double load_seconds = 0;
  std::vector<RankBytes> ranks{};       // what each rank took of its arenas
  std::optional<int64_t> references{};  // that are known, where it was interrupted before all were
};

// A configuration of training whose checkpoint, model and adapter are found.
class Job {
 public:
  // Finds them, as find_job() does. Throws UserError for what is not there.
  explicit Job(JobConfig config);
  // Takes a configuration for which find_job() was called already.
  static Job of_found(JobConfig config);

  const JobConfig& config() const { return config_; }
  // Plans training on the machine that the configuration names, or on this one, and takes nothing. What does not fit is
  // planned too: require_fit() refuses it.
  Plan plan() const;
  // Plans training here and now, and trains into config().out, or into a new directory below runs. In a process that a
  // launcher started, all processes call it. Throws CapacityError if nothing fits.
  RunResult run(const RunEvents& events = {}) const;

 private:
  Job() = default;

  JobConfig config_;
  FileLock used_;  // keeps a checkpoint that was made for it
};

// Finds what a configuration names: the checkpoint, the base of its adapter, directories of model and adapter; and sets
// threads and log_format of the process. What is found must stay as long as the lock. Throws UserError if there is no
// model and `needs_model`, and CapacityError if the process has no memory to plan in.
FileLock find_job(JobConfig& config, Needed needed = Needed::Weights, bool needs_model = true);

}  // namespace snug
