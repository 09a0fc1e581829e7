#include "train/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace snug {
namespace {

constexpr std::array<std::string_view, 7> kNames{
    "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay"};

double half_cosine(double progress) { return 0.5 * (1.0 + std::cos(std::numbers::pi * progress)); }

}  // namespace

ScheduleKind schedule_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); i++)
    if (kNames[i] == name) return static_cast<ScheduleKind>(i);
  user_error("schedule: found '{}', expected one of {}", name, fmt::join(kNames, ", "));
}

std::string_view name(ScheduleKind kind) { return kNames[static_cast<size_t>(kind)]; }

double Schedule::share(int64_t done) const {
  const double after = static_cast<double>(done - warmup_steps);
  const double progress = std::min(1.0, after / std::max(1.0, static_cast<double>(total_steps - warmup_steps)));
  switch (kind) {
    case ScheduleKind::Constant:
      return 1;
    case ScheduleKind::Linear:
      return 1 - progress;
    case ScheduleKind::Cosine:
      return half_cosine(progress);
    case ScheduleKind::CosineWithRestarts:
      return progress >= 1 ? 0 : half_cosine(std::fmod(static_cast<double>(cycles) * progress, 1.0));
    case ScheduleKind::Polynomial:
      return std::pow(1 - progress, power);
    case ScheduleKind::InverseSqrt: {
      // Without a warm-up transformers takes this many steps.
      const double scale = warmup_steps > 0 ? static_cast<double>(warmup_steps) : 10'000.0;
      return 1 / std::sqrt((after + scale) / scale);
    }
    case ScheduleKind::WarmupStableDecay: {
      const int64_t stable = total_steps - decay_steps;
      if (done < stable) return 1;
      return half_cosine(std::min(1.0, static_cast<double>(done - stable) / static_cast<double>(decay_steps)));
    }
  }
  internal_error("schedule {}", static_cast<int>(kind));
}

double Schedule::at(int64_t step) const {
  const int64_t done = step - 1;
  const bool has_floor = kind != ScheduleKind::Constant && kind != ScheduleKind::InverseSqrt;
  const double least = has_floor ? min_ratio : 0;
  if (done < warmup_steps) {
    // This one's warm-up begins at its floor.
    const double from = kind == ScheduleKind::WarmupStableDecay ? least : 0;
    return peak * (from + (1 - from) * static_cast<double>(done) / static_cast<double>(warmup_steps));
  }
  return peak * (least + (1 - least) * share(done));
}

double AverageWeights::add(double rate) {
  largest_rate = std::max(largest_rate, rate);
  const double weight = largest_rate * largest_rate;
  sum += weight;
  return sum > 0 ? weight / sum : 0;
}

}  // namespace snug
