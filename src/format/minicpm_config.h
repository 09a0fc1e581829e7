// Keys that config.json and preprocessor_config.json of MiniCPM-Llama3-V 2.5 have in common.
#pragma once

#include "format/json.h"

namespace snug {

// Throws UserError for a model of another version, which sees and writes images otherwise, or without slices.
void expect_minicpm_2_5(const JsonObject& config);

// Says how a picture is cut: an overview of about resolution^2 pixels, and slices.
struct SliceConfig {
  int64_t resolution = 448, max_slices = 9;
};

// Reads slice_config's keys, or those that stand in preprocessor_config.json. A view is no smaller than a patch.
SliceConfig read_slices(const JsonObject& config, int64_t patch);

}  // namespace snug
