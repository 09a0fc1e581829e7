#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace snug {

double Schedule::at(int64_t step) const {
  const auto done = static_cast<double>(step - 1), warmup = static_cast<double>(warmup_steps);
  if (step - 1 < warmup_steps) return peak * done / std::max(1.0, warmup);
  if (kind == ScheduleKind::Constant) return peak;
  const double rest = std::max(1.0, static_cast<double>(total_steps) - warmup);
  const double progress = std::min(1.0, (done - warmup) / rest);
  const double share =
      kind == ScheduleKind::Linear ? 1.0 - progress : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (min_ratio + (1.0 - min_ratio) * share);
}

}  // namespace snug
