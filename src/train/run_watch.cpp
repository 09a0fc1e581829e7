#include "train/run_watch.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "base/option_name.h"
#include "base/statistics.h"

namespace snug {
namespace {

constexpr int64_t kWarmUp = 2;        // steps that do what later ones need not
constexpr size_t kSpeedWindow = 10;   // steps whose time is compared
constexpr double kSlower = 1.25;      // times the plan's seconds
constexpr double kLeastLost = 0.02;   // seconds a step: writing metrics and lines takes some of them
constexpr double kBusyThreads = 0.7;  // share of the time that threads run which nothing holds up

}  // namespace

std::vector<Warning> RunWatch::look_at(const StepMetrics& step, double busy_seconds) {
  looked_++;
  std::vector<Warning> warnings;
  if (auto found = look_at_loss(step)) warnings.push_back(std::move(*found));
  if (auto found = look_at_speed(step, busy_seconds)) warnings.push_back(std::move(*found));
  return warnings;
}

std::optional<Warning> RunWatch::look_at_loss(const StepMetrics& step) {
  const std::vector<double> before(losses_.begin(), losses_.end());
  losses_.push_back(step.loss);
  if (losses_.size() > kLeapWindow) losses_.pop_front();
  if (leapt_ || before.size() < kLeapWindow || !leaps(before, step.loss)) return std::nullopt;
  leapt_ = true;
  return Warning{fmt::format("step {}: the loss leapt to {:.4f}, where the median of the {} steps before is {:.4f}",
                             step.step, step.loss, kLeapWindow, quantile_of(before, 0.5)),
                 true};
}

std::optional<Warning> RunWatch::look_at_speed(const StepMetrics& step, double busy_seconds) {
  if (!planned_seconds_ || looked_ <= kWarmUp || seconds_.size() == kSpeedWindow) return std::nullopt;
  seconds_.push_back(step.step_seconds);
  busy_ += busy_seconds;
  if (seconds_.size() < kSpeedWindow) return std::nullopt;
  const double median = quantile_of(seconds_, 0.5);
  if (median <= kSlower * *planned_seconds_ || median - *planned_seconds_ < kLeastLost) return std::nullopt;
  const double ran = busy_ / (std::accumulate(seconds_.begin(), seconds_.end(), 0.0) * static_cast<double>(threads_));
  return Warning{fmt::format(
      "steps {} to {} took {:.3g} s, {:.2f} times the {:.3g} s of the plan: {}", step.step - int64_t{kSpeedWindow} + 1,
      step.step, median, median / *planned_seconds_, *planned_seconds_,
      threads_ > 0 && ran < kBusyThreads
          ? fmt::format(
                "the threads ran {:.0f} % of that time: other processes have their cores, or they wait for a disk",
                100 * ran)
          : fmt::format("{} FILE shows what steps of a run wait for, and 'snug explain' compares it with the plan",
                        option_name("trace")))};
}

}  // namespace snug
