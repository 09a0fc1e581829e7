// Says what became of a run, and what it tells of its loss, its speed and its memory: `snug explain`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/kernel_log.h"
#include "base/owner.h"
#include "report/run_files.h"

namespace snug {

// Holds what is found beside a run's files.
struct Circumstances {
  std::optional<HeldBy> held;                      // the run's directory
  std::optional<std::vector<KernelEvent>> kernel;  // of this machine; nothing if they may not be read
  std::optional<uint64_t> free_bytes{};            // now, on the disk of the run's directory; nothing if not known
};

// Is a line on one subject: "end", "loss", "speed", "memory" or "kernels".
struct Finding {
  std::string subject, text;
};

// Returns what is found, the end first. Only steps behind the first two count as a measure of speed: the first ones
// load and warm up.
std::vector<Finding> explain(const RunFiles& run, const Circumstances& circumstances);
// Returns what is found of a run that is_before_its_first_step().
std::vector<Finding> explain_beginning(const Circumstances& circumstances);

}  // namespace snug
