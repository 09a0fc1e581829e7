// Brings an arrangement under its caps: it finds where memory is short, which options to enable, and how far.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/search/evaluator.h"
#include "plan/search/simplicity.h"
#include "plan/spec/caps.h"

namespace snug {

// Says where memory must be freed first: on a rank's device only, or also in the node's memory and on its disk.
enum class MemoryScope : uint8_t { Device, Node };

// Says what enabling an option may do to memories that are not short: keep them so, or also make them short, which
// other options then mend.
enum class SideEffects : uint8_t { Forbid, Allow };

class MemoryReducer {
 public:
  explicit MemoryReducer(Evaluator& evaluator, int ranks) : evaluator_(evaluator), ranks_(ranks) {}

  // Sets the caps of the calls that follow; the search under them may compile a new budget of ops (spent()) from now
  // on.
  void set_caps(const Caps& caps);
  // Makes the search rough: it takes the first position of an option that suffices.
  void set_rough(bool rough) { rough_ = rough; }
  bool rough() const { return rough_; }

  // Returns whether more ops were compiled than a search may compile, times `times`.
  bool spent(uint64_t times = 1) const;
  // Lets this many more ops be compiled until spent(), and a whole budget beyond those until spent(2).
  void allow(uint64_t ops);
  // Allows this many ops where fewer are left.
  void allow_at_least(uint64_t ops);

  // Returns the needs of a step, or of loading, saving and evaluating if those are known to be more
  // (note_other_programs). These take about as much in all arrangements beside what persists on a rank, and are worked
  // out where they decide.
  Footprint footprint(const Point& p);
  void note_other_programs(const Compiled& whole, const Evaluation& step);
  bool fit_all(const Footprint& rank) const;
  Complexity complexity_of(const Point& p);
  // Returns the bytes by which the tightest cap is exceeded; negative where all are kept.
  double excess(const Point& p, MemoryScope scope);
  bool kept(const Point& p, MemoryScope scope) { return excess(p, scope) <= 0; }
  bool device_is_apart() const { return !caps_.shared || caps_.device_bytes < caps_.host_bytes; }
  // Returns whether more than this share of some allowed memory is missing in each of three cases: all options on, only
  // those on that compute, and none on. Disks are left out, as others may need less of them.
  bool is_hopeless(const Point& baseline, double share);

  // Return the options that free bytes of a scope, or of whatever memory may be short.
  std::vector<size_t> helping(const Point& p, MemoryScope scope) const;
  std::vector<size_t> helping(const Point& p) const;
  // Returns those of the helping options that offload nothing, as the host has staging for what goes to the disk.
  std::vector<size_t> computing(const Point& p) const;
  Point all_on(Point p) const;

  // Enables options, first those that cost the fewest seconds for the bytes that they free, and the last only as far as
  // needed. Returns false where everything that frees bytes is on and not enough, or where a step reaches `limit`
  // seconds before it is enough. Enables all at once where the search has compiled too much.
  bool reduce(Point& p, MemoryScope scope, std::vector<size_t> left, std::vector<size_t>& enabled, double limit,
              SideEffects side_effects = SideEffects::Allow);
  // Extends this option alone, from its position to one that is enough; returns false if there is none.
  bool extend(Point& p, size_t d);
  // Takes an option back, as later ones may have freed what it was for: to the least position that is enough if
  // `exact`, else to one where a step takes hardly longer than there.
  void retract(Point& p, size_t d, bool exact = false);

 private:
  // Holds what enabling an option costs, in seconds a byte, and how far to enable it.
  struct OptionCost {
    double price = 0;
    int64_t position = 0;
  };

  const std::vector<MemoryOption>& options(const Point& p) const { return evaluator_.options(p); }
  Need tightest(const Point& p, MemoryScope scope);
  std::optional<OptionCost> cost_of(const Point& p, size_t d, MemoryScope scope);
  std::optional<OptionCost> measured_cost(Point p, size_t d, MemoryScope scope);
  std::pair<std::string, std::string> cost_keys(const Point& p, size_t d, MemoryScope scope);
  void evaluate_costs(const Point& p, const std::vector<size_t>& left, MemoryScope scope);
  void set_to_least(Point& p, size_t d, int64_t too_few, MemoryScope scope, bool exact = false);
  int64_t most_that_keeps(Point p, size_t d, int64_t position);

  Evaluator& evaluator_;
  const int ranks_;
  Caps caps_;
  bool rough_ = false;
  uint64_t began_at_ = 0;                    // Evaluator::ops() when the caps were set
  Footprint other_programs_;                 // bytes that loading, saving and evaluating took beside what persists
  std::map<std::string, OptionCost> costs_;  // valid under any caps
  std::set<std::string> worthless_;
};

}  // namespace snug
