// Notices what is worth a warning while a run goes on.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "train/metrics.h"

namespace snug {

struct Warning {
  std::string message;
  bool of_samples = false;  // the samples of the step may be the reason
};

// Looks at steps one after another, and warns of each of these once: a loss that leaps (base/statistics.h), and steps
// that take longer than the plan says.
class RunWatch {
 public:
  // `planned_seconds`: of a step, where the machine was measured. `threads` of this process compute; 0 where GPUs do,
  // or where it has other ranks too.
  RunWatch(std::optional<double> planned_seconds, int64_t threads)
      : planned_seconds_(planned_seconds), threads_(threads) {}
  // `busy_seconds`: of all processors, that this process has taken since the step before.
  std::vector<Warning> look_at(const StepMetrics& step, double busy_seconds);

 private:
  std::optional<Warning> look_at_loss(const StepMetrics& step);
  std::optional<Warning> look_at_speed(const StepMetrics& step, double busy_seconds);

  const std::optional<double> planned_seconds_;
  const int64_t threads_;
  std::deque<double> losses_;  // of the last kLeapWindow steps
  std::vector<double> seconds_;
  double busy_ = 0;
  int64_t looked_ = 0;
  bool leapt_ = false;
};

}  // namespace snug
