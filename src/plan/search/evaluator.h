// Compiles, prices and remembers arrangements, as points of a search.
#pragma once

#include <exception>
#include <map>
#include <unordered_map>

#include "plan/search/memory_options.h"

namespace snug {

// Says how far transfers may be from the ops that need them: Near, as near as saves memory; FarBehind, they end far
// behind the ops whose results they take away; FarAhead, they also begin far ahead of the ops to which they bring data.
enum class Reach : uint8_t { Near, FarBehind, FarAhead };

// Holds a point of the search: a cut, a stage, an order of the step, the reach of transfers, and the positions of the
// options that the stage leaves open.
struct Point {
  Cut cut;
  int stage = 0;
  bool layer_major = false, deferred = false;
  Reach reach = Reach::Near;
  std::vector<int64_t> positions;  // of the options, in their order
};

// Holds what the search compares. It covers the step alone.
struct Evaluation : Footprint {
  double seconds = 0;
  PerSpace<uint64_t> persistent{};  // bytes that stay from step to step
  bool update_fullest = false;      // the device is fullest in the update, if there is one
};

class Evaluator {
 public:
  // References must outlive the evaluator. UserError if batch_size, ranks, micro-batch and passes do not agree.
  Evaluator(const JobSpec& spec, const Choices& choices, const OpFacts& facts, const Pricing& pricing,
            const Heartbeat& heartbeat);

  const std::vector<Cut>& cuts() const { return cuts_; }  // left open by the choices, the smallest passes first
  // Returns them as another order of the step is searched, which may end before all are tried: that of the fastest so
  // far, of so many passes, comes first; of the others, those with few passes compile soonest. Where weights lie on the
  // disk a single pass comes last: layer by layer, more passes read as little and keep fewer activations.
  std::vector<Cut> cuts_for_other_order(int64_t fastest_passes, bool reads_disk) const;
  std::vector<int> stages() const;
  const std::vector<MemoryOption>& options(const Point& p) const { return memory_options_.at(p.stage); }
  // Returns the point with all options at 0.
  Point baseline_point(const Cut& cut, int stage) const;

  Strategy strategy(const Point& p) const;
  const Evaluation& evaluate(const Point& p);
  // Evaluates several points at once, on as many threads as there are (a few at most).
  void evaluate_all(const std::vector<Point>& points);
  // Returns what the job needs with loading, saving and evaluating: arenas of the fullest rank, ops of the first.
  const Footprint& whole(const Point& p);
  // Compiles the job with loading, saving and evaluating for the first rank, in arenas as the fullest rank needs them.
  // `ranks` gets the needs of each rank that was compared.
  Compiled compiled_in_full(const Point& p, std::vector<RankBytes>* ranks = nullptr);
  // Returns the point's arrangement. Whether it fits is left open, and so is the forecast unless `whole` is given.
  Arrangement arrangement(const Point& p, const Compiled* whole = nullptr);
  std::string words(const Point& p) const;

  // Return how many arrangements were compiled so far, and how many ops they have.
  size_t compiled() const { return compiled_; }
  uint64_t ops() const { return ops_; }

 private:
  JobSpec job(const Point& p, bool step_only) const;
  struct Pending {
    std::string key;
    JobSpec job;
    Evaluation evaluation;
    std::exception_ptr error;
  };
  void evaluate(Pending& pending) const;
  void note(uint64_t ops);
  double seconds_of(const Compiled& compiled, const JobSpec& job) const;

  const JobSpec& spec_;
  Choices choices_;
  const OpFacts& facts_;
  Pricing pricing_;
  Heartbeat heartbeat_;
  std::vector<Cut> cuts_;
  std::map<int, std::vector<MemoryOption>> memory_options_;  // by stage
  std::unordered_map<std::string, Evaluation> evaluations_;
  std::unordered_map<std::string, Footprint> whole_;
  size_t compiled_ = 0;
  uint64_t ops_ = 0;
};

}  // namespace snug
