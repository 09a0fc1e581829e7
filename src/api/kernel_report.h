// Reports which kernels the ops of a planned step run as, for people and for scripts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "api/job.h"

namespace snug {

// Returns a line for each kernel that is not the device's fastest for its kind of op, with the reason and its share of
// a step; empty if there is none, or if the device's speed is unknown.
std::string slow_kernels_text(const Planned& planned);
// Returns a table of every kind of op with its kernel, how often it runs in a step, its rate and its seconds.
std::string kernels_text(const Planned& planned);
// Returns [{"op": "attention", "dtype": "bf16", "kernel": ..., "slow": null or the reason, "ops": ..., "seconds": ...},
// ...].
nlohmann::ordered_json kernels_json(const Planned& planned);

}  // namespace snug
