// The simplest of the arrangements that are about as fast as the fastest.
#pragma once

#include <optional>
#include <vector>

#include "plan/settler.h"

namespace snug {

class Simplifier {
 public:
  // A candidate is about as fast as the fastest where it takes no longer than `margin` times as long; times within
  // `equal_time` are one. References must outlive the simplifier.
  Simplifier(Prober& prober, Relief& relief, Settler& settler, const Choices& choices, double margin,
             double equal_time);

  // Looks for candidates within the margin of the fastest that the settler has judged to fit: those that offload
  // nothing, in each cut and stage; and the fastest and the simplest without each of the things that they turn on, as
  // long as that makes them simpler. Compiles a small part of what was compiled before. The settler keeps what it
  // finds.
  void look();
  // Returns, of all that the settler has judged and that fits as caps are known now, the simplest within the margin of
  // the fastest; of those that are equally simple the fastest, and of equal times the smallest. Nothing if none fits.
  std::optional<Found> simplest();

 private:
  std::vector<Found> candidates();
  bool tired() const { return prober_.ops() >= stop_at_; }
  void look_without_offloading();
  void turn_off(Found from);
  std::optional<Found> consider(const Point& p, const std::vector<size_t>& left);

  Prober& prober_;
  Relief& relief_;
  Settler& settler_;
  const Choices& choices_;
  const double margin_, equal_time_;
  double limit_ = kNoLimit;  // seconds, while it looks
  uint64_t stop_at_ = 0;     // Prober::ops() then
};

}  // namespace snug
