// Returns the learning rate of each step, by transformers' schedules of these names.
#pragma once

#include <cstdint>

namespace snug {

enum class ScheduleKind : uint8_t { Constant, Linear, Cosine };

struct Schedule {
  ScheduleKind kind = ScheduleKind::Cosine;
  double peak = 0;
  int64_t warmup_steps = 0, total_steps = 0;
  double min_ratio = 0;  // linear and cosine end at peak x min_ratio

  // Returns the rate of step `step`, counted from 1 (transformers' lambda of step - 1).
  double at(int64_t step) const;
};

}  // namespace snug
