// Describes a model in the terms of GGUF.
#pragma once

#include <filesystem>
#include <vector>

#include "format/gguf_architecture.h"
#include "model/model_config.h"

namespace snug {

// Returns the sizes of a model. Throws UserError where GGUF's architectures have no such model: by family, layer, or
// how it is stored.
GgufSizes gguf_sizes(const ModelConfig& config, const std::filesystem::path& model);

// Returns the weight in Yarn's formula of what cosine and sine are divided by; 0: they are not.
double gguf_yarn_log_multiplier(const RopeParameters& rope);

// Returns the divisor of each rotary frequency; empty where frequencies are not divided.
std::vector<float> gguf_rope_factors(const ModelSpec& spec);

}  // namespace snug
