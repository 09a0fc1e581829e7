// Finds the simplest of the arrangements that are about as fast as the fastest.
#pragma once

#include <optional>
#include <vector>

#include "plan/search/solver.h"

namespace snug {

class Simplifier {
 public:
  // A candidate is about as fast as the fastest if it takes no longer than `margin` times as long; times within
  // `equal_time` count as equal. References must outlive the simplifier.
  Simplifier(Evaluator& evaluator, MemoryReducer& reducer, Solver& solver, const Choices& choices, double margin,
             double equal_time);

  // Looks for candidates within the margin of the fastest that the solver has judged to fit: those that offload
  // nothing, in each cut and stage; and the fastest and the simplest without each of the options that they enable, as
  // long as that makes them simpler. It compiles a small part of what was compiled before, and the solver keeps what it
  // finds.
  void search();
  // Returns, of all candidates that the solver has judged and that fit under the caps as now known, the simplest within
  // the margin of the fastest; of equally simple ones the fastest, and of equal times the smallest. Nothing if none
  // fits.
  std::optional<Candidate> simplest();

 private:
  std::vector<Candidate> candidates();
  bool out_of_effort() const { return evaluator_.ops() >= stop_at_; }
  void search_without_offloading();
  void disable_options(Candidate from);
  std::optional<Candidate> consider(const Point& p, const std::vector<size_t>& left);

  Evaluator& evaluator_;
  MemoryReducer& reducer_;
  Solver& solver_;
  const Choices& choices_;
  const double margin_, equal_time_;
  double limit_ = kNoLimit;  // seconds, during a search
  uint64_t stop_at_ = 0;     // Evaluator::ops() at which the search ends
};

}  // namespace snug
