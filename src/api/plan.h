// What is planned of a job before it runs.
#pragma once

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

// Holds what a job takes, where and for how long, and what else there would be: plan_text() and plan_json() write it.
struct Plan {
  JobConfig config;  // with batch size and ranks settled
  Planned planned;
  std::optional<DataSummary> data{};  // nothing without data
  JobsBefore before{};
  std::vector<std::string> notes{};  // lines for the user
};

// Throws CapacityError unless the job fits, and the jobs that go before it.
void require_fit(const Plan& plan);

}  // namespace snug
