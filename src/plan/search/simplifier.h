// The simplest of the arrangements that are about as fast as the fastest.
#pragma once

#include <optional>
#include <vector>

#include "plan/search/solver.h"

namespace snug {

class Simplifier {
 public:
  // A candidate is about as fast as the fastest where it takes no longer than `margin` times as long; times within
  // `equal_time` are one. References must outlive the simplifier.
  Simplifier(Evaluator& evaluator, MemoryReducer& reducer, Solver& solver, const Choices& choices, double margin,
             double equal_time);

  // Looks for candidates within the margin of the fastest that the solver has judged to fit: those that offload
  // nothing, in each cut and stage; and the fastest and the simplest without each of the things that they turn on, as
  // long as that makes them simpler. Compiles a small part of what was compiled before. The solver keeps what it
  // finds.
  void search();
  // Returns, of all that the solver has judged and that fits as caps are known now, the simplest within the margin of
  // the fastest; of those that are equally simple the fastest, and of equal times the smallest. Nothing if none fits.
  std::optional<Candidate> simplest();

 private:
  std::vector<Candidate> candidates();
  bool out_of_effort() const { return evaluator_.ops() >= stop_at_; }
  void search_without_offloading();
  void turn_off(Candidate from);
  std::optional<Candidate> consider(const Point& p, const std::vector<size_t>& left);

  Evaluator& evaluator_;
  MemoryReducer& reducer_;
  Solver& solver_;
  const Choices& choices_;
  const double margin_, equal_time_;
  double limit_ = kNoLimit;  // seconds, while it looks
  uint64_t stop_at_ = 0;     // Evaluator::ops() then
};

}  // namespace snug
