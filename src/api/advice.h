// Finds what would make a job faster, or make it fit: each answer is a plan of its own.
#pragma once

#include "api/options.h"
#include "plan/search/fit.h"

namespace snug {

// Holds what Fitter::near() would choose under other caps.
struct Alternative {
  int64_t gigabytes = 0;  // beyond what a rank's device may take; on the CPU, where the host is capped, beyond that
  Arrangement arrangement;
};

inline constexpr int64_t kMostMore = 8;  // gigabytes

// Returns what 1, 2, 4 and 8 GiB more would give beyond the fitter's last result, if it is faster than with less.
std::vector<Alternative> what_more_buys(Fitter& fitter, const Caps& caps, const FitResult& fit);
// Returns what would be chosen without a quarter of the memory that the choice takes; nothing if no similar arrangement
// fits.
std::optional<Arrangement> with_less(Fitter& fitter, const Caps& caps, const Arrangement& chosen);

// Describes a change of what is trained, of formats or of pins, with which the job fits.
struct Change {
  std::string option;       // "--state-format 8bit"
  std::string effect;       // what it changes besides the memory
  Arrangement arrangement;  // the smallest with that change
};

// Returns the least change of each kind that suffices, the smallest changes first: pins of the arrangement come first,
// one of them or else all together. Empty if no such change suffices.
std::vector<Change> changes_that_fit(const JobConfig& options, bool evaluate, const OpFacts& facts, const Caps& caps,
                                     const Pricing& pricing, const Heartbeat& heartbeat);

}  // namespace snug
