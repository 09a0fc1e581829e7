// What must be enabled at a cut, a stage and an order so that all caps are kept, and the fastest of what was found.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "plan/search/memory_reducer.h"

namespace snug {

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// What is no faster than by this share was not worth looking, and what costs no more than that need not be mended.
inline constexpr double kBetter = 0.995;

struct Candidate {
  Point point;
  double seconds = 0;
  uint64_t bytes = 0;  // of a rank, wherever
  bool fits = false;
  double missing = 0;  // bytes of what is allowed, by which it does not
};

// The same cut, stage and order.
Point baseline(Point p);
std::vector<size_t> enabled_of(const Point& p);
std::vector<size_t> without(std::vector<size_t> options, size_t d);

class Solver {
 public:
  // References must outlive the solver.
  Solver(Evaluator& evaluator, MemoryReducer& reducer) : evaluator_(evaluator), reducer_(reducer) {}

  Candidate judged(const Point& p, bool fits);
  // The least that must be enabled at a cut and stage; with all on where that is not enough. First with the host's
  // help, then, if that asks too much of the host, with as much of it as there is, with the disk's instead, and, as the
  // host has staging for the disk, with neither. Nothing if it takes longer than `limit` with all off.
  std::optional<Candidate> least(const Point& baseline, double limit);
  // With the options `left` enabled as far as it takes, and those that were `enabled` before taken back as far as
  // goes. What takes as long as `limit` before there is room enough is given up.
  Candidate solved(Point p, std::vector<size_t> left, std::vector<size_t> enabled, double limit = kNoLimit,
                   SideEffects side_effects = SideEffects::Allow);
  // With more enabled where that is needed, or taken back where it is not; nothing if it does not fit.
  std::optional<Candidate> adjusted(Point p);
  // The least that is needed under the caps as they are known now, in the same cut and order.
  void work_out(Candidate& found);

  // Seconds of the fastest that fits of all judged since the last forget_fastest(); kNoLimit if none does.
  double fastest() const { return fastest_; }
  void forget_fastest() { fastest_ = kNoLimit; }
  const std::string& fastest_words() const { return fastest_words_; }
  // Everything that was judged to fit since the last forget(), in that order.
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
