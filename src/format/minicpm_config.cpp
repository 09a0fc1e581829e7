#include "format/minicpm_config.h"

namespace snug {

void expect_minicpm_2_5(const JsonObject& config) {
  if (config.has("version") && config.at("version") != 2.5 && config.at("version") != "2.5")
    config.fail("version", "2.5: models of other versions see and write images otherwise");
  if (!config.boolean("slice_mode", true))
    config.fail("slice_mode", "true, as models of version 2.5 were trained with slices");
}

SliceConfig read_slices(const JsonObject& config, int64_t patch) {
  constexpr int64_t kMostResolution = 1344, kMostSlices = 64;
  const SliceConfig usual;
  return {config.integer("scale_resolution", patch, kMostResolution, usual.resolution),
          config.integer("max_slice_nums", 1, kMostSlices, usual.max_slices)};
}

}  // namespace snug
