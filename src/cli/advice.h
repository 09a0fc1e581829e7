// What would make a job faster, or make it fit: each answer is a plan of its own.
#pragma once

#include "cli/options.h"
#include "plan/search/fit.h"

namespace snug {

// What would be chosen under other caps, by Fitter::near().
struct Alternative {
  int64_t gigabytes = 0;  // more on a rank's device than allowed; on the CPU, where that is the host's, there too
  Arrangement arrangement;
};

inline constexpr int64_t kMostMore = 8;  // gigabytes

// What 1, 2, 4 and 8 GiB more would buy than the fitter's last result has; only what is faster than all with less.
std::vector<Alternative> what_more_buys(Fitter& fitter, const Caps& caps, const FitResult& fit);
// What would be chosen where a quarter of the memory that the choice takes is not there; nothing if little like it
// fits.
std::optional<Arrangement> with_less(Fitter& fitter, const Caps& caps, const Arrangement& chosen);

// A change of what is trained, in which formats or under which pins, with which the job fits.
struct Change {
  std::string option;       // "--state-format 8bit"
  std::string effect;       // what it changes beside the memory
  Arrangement arrangement;  // its smallest
};

// The least of each kind that suffices, those first that change the least: pins of the arrangement come first, one of
// them or else all together. None if no such change suffices.
std::vector<Change> changes_that_fit(const Options& options, bool evaluate, const OpFacts& facts, const Caps& caps,
                                     const Pricing& pricing, const Heartbeat& heartbeat);

}  // namespace snug
