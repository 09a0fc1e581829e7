// Finds what must be enabled at a cut, a stage and an order so that all caps are kept, and keeps the fastest found.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "plan/search/memory_reducer.h"

namespace snug {

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// A gain is too small to look for, and a cost too small to mend, if the shorter time is more than this share of the
// longer.
inline constexpr double kBetter = 0.995;

struct Candidate {
  Point point;
  double seconds = 0;
  uint64_t bytes = 0;  // of a rank, in all spaces
  bool fits = false;
  double missing = 0;  // bytes beyond what is allowed, if it does not fit
};

// Returns the point with all options at 0, at the same cut, stage and order.
Point baseline(Point p);
std::vector<size_t> enabled_of(const Point& p);
std::vector<size_t> without(std::vector<size_t> options, size_t d);

class Solver {
 public:
  // References must outlive the solver.
  Solver(Evaluator& evaluator, MemoryReducer& reducer) : evaluator_(evaluator), reducer_(reducer) {}

  Candidate judge(const Point& p, bool fits);
  // Enables the least that is needed at a cut and stage, or everything where that is not enough. It first uses the
  // host's memory; if that asks too much of the host, it uses as much of it as there is, then the disk instead, and, as
  // the host has staging for the disk, neither. Returns nothing if a step takes longer than `limit` with all off.
  std::optional<Candidate> least(const Point& baseline, double limit);
  // Enables the options `left` as far as needed, and takes those that were `enabled` before back as far as possible. It
  // gives up where a step takes `limit` before memory suffices.
  Candidate solve(Point p, std::vector<size_t> left, std::vector<size_t> enabled, double limit = kNoLimit,
                  SideEffects side_effects = SideEffects::Allow);
  // Enables more where that is needed, or takes back what is not; returns nothing if the point does not fit.
  std::optional<Candidate> adjusted(Point p);
  // Replaces the candidate by the least that is needed under the caps as now known, in its cut and order, if that is
  // faster or the candidate does not fit.
  void replace_by_least(Candidate& found);

  // Returns the seconds of the fastest that was judged to fit since the last forget_fastest(); kNoLimit if none was.
  double fastest() const { return fastest_; }
  void forget_fastest() { fastest_ = kNoLimit; }
  const std::string& fastest_words() const { return fastest_words_; }
  // Returns everything that was judged to fit since the last forget(), in that order.
  const std::vector<Candidate>& fitting() const { return fitting_; }
  void forget() { fitting_.clear(); }

 private:
  std::optional<Candidate> by_the_host(const Point& baseline);

  Evaluator& evaluator_;
  MemoryReducer& reducer_;
  double fastest_ = kNoLimit;
  std::string fastest_words_;
  std::vector<Candidate> fitting_;
};

}  // namespace snug
