// Writes a plan for people and for scripts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "api/plan.h"

namespace snug {

// Returns what `snug plan --json` prints and plan.json holds.
nlohmann::ordered_json plan_json(const Plan& plan);

// Returns how a model that is not trained is held, and whether that fits.
std::string use_text(const Planned& planned, const JobConfig& options);

// Return what ranks need, without the driver's share: [{"rank": 0, "device_bytes": ...}, ...]; and "all 4 need in
// arenas: device 12.90 GiB each, host 1.00 GiB (rank 3) to 1.02 GiB (rank 0)". `of_all` is the number of all ranks, of
// which `ranks` may be some.
nlohmann::ordered_json ranks_json(const std::vector<RankBytes>& ranks);
std::string ranks_text(const std::vector<RankBytes>& ranks, int of_all);

// Returns a plan of training at a glance.
std::string plan_text(const Plan& plan);

}  // namespace snug
