// Returns the learning rate of each step, by transformers' schedules of these names.
#pragma once

#include <cstdint>
#include <string_view>

namespace snug {

enum class ScheduleKind : uint8_t {
  Constant,
  Linear,
  Cosine,
  CosineWithRestarts,
  Polynomial,
  InverseSqrt,
  WarmupStableDecay
};

// Returns the value of "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt" or
// "warmup_stable_decay"; throws UserError for another name.
ScheduleKind schedule_from_name(std::string_view name);
std::string_view name(ScheduleKind kind);

struct Schedule {
  ScheduleKind kind = ScheduleKind::Cosine;
  double peak = 0;
  int64_t warmup_steps = 0, total_steps = 0;
  double min_ratio = 0;     // all but constant and inverse_sqrt end at peak x min_ratio
  int64_t cycles = 1;       // of cosine_with_restarts
  double power = 1;         // of polynomial
  int64_t decay_steps = 1;  // of warmup_stable_decay: the last steps, in which the rate falls as half a cosine

  // Returns the rate of step `step`, counted from 1 (transformers' lambda of step - 1).
  double at(int64_t step) const;

 private:
  // Returns the share of the rate, after the warm-up, at a step counted from 0.
  double share(int64_t done) const;
};

// Holds what the average of schedule-free training has taken in so far: each iterate weighs as the square of the
// largest rate up to its step (Defazio et al., arXiv:2405.15682, with r = 0).
struct AverageWeights {
  double largest_rate = 0, sum = 0;

  // Takes in the iterate of the next step, whose rate this is, and returns its share in the average.
  double add(double rate);
};

}  // namespace snug
