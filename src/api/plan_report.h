// Writes a plan for people and for scripts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "api/job.h"

namespace snug {

// Holds what the data adds to a plan; it is left out without data.
struct DataSummary {
  int64_t samples_per_epoch = 0, blocks_per_epoch = 0, steps_per_epoch = 0;
  int64_t tokens_per_epoch = 0, loss_tokens_per_epoch = 0;
  int64_t steps = 0;  // of the run

  // Returns the share of the blocks that is not padding.
  double filled(int64_t sequence_length) const {
    return static_cast<double>(tokens_per_epoch) / static_cast<double>(blocks_per_epoch * sequence_length);
  }
};

// Holds the jobs that go before a run, each by itself, and are gone before the run takes its memory: that of the model
// that --reference names, and that of the rows of images (api/image_cache.h).
struct JobsBefore {
  std::optional<Planned> reference{}, embedding{};
};

// Returns what `snug plan --json` prints and plan.json holds.
nlohmann::ordered_json plan_json(const Planned& planned, const JobConfig& options,
                                 const std::optional<DataSummary>& data, const JobsBefore& before = {});

// Returns how a model that is not trained is held, and whether that fits.
std::string use_text(const Planned& planned, const JobConfig& options);

// Return what ranks need, without the driver's share: [{"rank": 0, "device_bytes": ...}, ...]; and "all 4 need in
// arenas: device 12.90 GiB each, host 1.00 GiB (rank 3) to 1.02 GiB (rank 0)". `of_all` is the number of all ranks, of
// which `ranks` may be some.
nlohmann::ordered_json ranks_json(const std::vector<RankBytes>& ranks);
std::string ranks_text(const std::vector<RankBytes>& ranks, int of_all);

// Returns a plan of training at a glance.
std::string plan_text(const Planned& planned, const JobConfig& options, const std::optional<DataSummary>& data,
                      const JobsBefore& before = {});

}  // namespace snug
