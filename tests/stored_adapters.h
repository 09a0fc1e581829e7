// Adapters and models that PEFT saved (fixtures/adapters), and jobs on them.
#pragma once

#include "api/options.h"
#include "tiny_model.h"

namespace snug {

inline std::filesystem::path adapters() { return std::filesystem::path(SNUG_FIXTURES) / "adapters"; }

inline std::vector<TinySample> samples_of_adapters() {
  std::vector<TinySample> samples;
  const auto stored = read_json(adapters() / "samples.json");
  for (const auto& ids : stored) samples.push_back({ids.get<std::vector<int32_t>>(), ids.get<std::vector<int32_t>>()});
  return samples;
}

// Returns options of a job in fp32 on one of the models.
inline JobConfig options_on(const std::string& base) {
  JobConfig options;
  options.model = (adapters() / base).string();
  options.device = "cpu";
  options.compute = "fp32";
  options.sequence_length = 32;
  return options;
}

}  // namespace snug
