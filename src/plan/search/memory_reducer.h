// Room for an arrangement under caps: what the places that are short need, and which options to enable and how far.
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

// What must be relieved first: a rank's device, then the node's memory and all else.
enum class MemoryScope : uint8_t { Device, Node };

// What an option may do to places that are not short when it is enabled: keep them so, or make them short, to be mended
// by other options.
enum class SideEffects : uint8_t { Forbid, Allow };

class MemoryReducer {
 public:
  explicit MemoryReducer(Evaluator& evaluator, int ranks) : evaluator_(evaluator), ranks_(ranks) {}

  // Of what follows; the search under them may compile so much (spent()) from now on.
  void set_caps(const Caps& caps);
  // A rough look is content with the first position of an option that is enough.
  void set_rough(bool rough) { rough_ = rough; }
  bool rough() const { return rough_; }

  // Whether so many times the ops were compiled that a search may take.
  bool spent(uint64_t times = 1) const;
  // From now on so many ops until spent(), and as many as a search may take beyond those until spent(2).
  void allow(uint64_t ops);
  // The same where fewer were left.
  void allow_at_least(uint64_t ops);

  // Of a step, or what loading, saving and evaluating take, if that is known to be more (note_around): about as much in
  // all arrangements beside what stays on a rank, and worked out where it decides.
  Footprint footprint(const Point& p);
  void note_around(const Compiled& whole, const Evaluation& step);
  bool fit_all(const Footprint& rank) const;
  Complexity complexity_of(const Point& p);
  // Bytes by which the tightest cap is missed; negative where all are kept.
  double excess(const Point& p, MemoryScope scope);
  bool kept(const Point& p, MemoryScope scope) { return excess(p, scope) <= 0; }
  bool device_is_apart() const { return !caps_.shared || caps_.device_bytes < caps_.host_bytes; }
  // Whether this share of some memory that is allowed is missing with all on, with all on that computes, and with none;
  // of disks others may need less.
  bool is_hopeless(const Point& baseline, double share);

  // Memory options that free bytes of a place; of what is short.
  std::vector<size_t> helping(const Point& p, MemoryScope scope) const;
  std::vector<size_t> helping(const Point& p) const;
  // Of those, what moves nothing elsewhere: the host has staging of what goes to the disk.
  std::vector<size_t> computing(const Point& p) const;
  Point all_on(Point p) const;

  // Enables options, those first that cost the fewest seconds for the bytes they free, and the last of them only as
  // far as it takes. False where all that frees something is on, and not enough, or where a step takes as long as
  // `limit` and it is not enough yet. All at once where it has taken too long.
  bool reduce(Point& p, MemoryScope scope, std::vector<size_t> left, std::vector<size_t>& enabled, double limit,
              SideEffects side_effects = SideEffects::Allow);
  // Extends this option alone, from where it stands to where that is enough; false if nowhere.
  bool extend(Point& p, size_t d);
  // Later options may have freed what this one was for. To the least position that is enough where `exact`; else to one
  // where a step takes next to no longer than there.
  void retract(Point& p, size_t d, bool exact = false);

 private:
  // What enabling an option costs, in seconds a byte, and how far it is to be enabled.
  struct Offer {
    double price = 0;
    int64_t position = 0;
  };

  const std::vector<MemoryOption>& options(const Point& p) const { return evaluator_.options(p); }
  Need tightest(const Point& p, MemoryScope scope);
  std::optional<Offer> offer_of(const Point& p, size_t d, MemoryScope scope);
  std::optional<Offer> measured_offer(Point p, size_t d, MemoryScope scope);
  std::pair<std::string, std::string> offer_keys(const Point& p, size_t d, MemoryScope scope);
  void evaluate_offers(const Point& p, const std::vector<size_t>& left, MemoryScope scope);
  void set_to_least(Point& p, size_t d, int64_t too_few, MemoryScope scope, bool exact = false);
  int64_t most_that_keeps(Point p, size_t d, int64_t position);

  Evaluator& evaluator_;
  const int ranks_;
  Caps caps_;
  bool rough_ = false;
  uint64_t began_at_ = 0;                // Evaluator::ops() then
  Footprint around_;                     // what loading, saving and evaluating took beside what persists
  std::map<std::string, Offer> offers_;  // whatever the caps
  std::set<std::string> worthless_;
};

}  // namespace snug
