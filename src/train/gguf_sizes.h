// Describes a model in the terms of GGUF.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "format/gguf_architecture.h"
#include "model/model_config.h"

namespace snug {

// Returns the sizes of a model. Throws UserError where GGUF's architectures have no such model: by family, layer, or
// how it is stored.
GgufSizes gguf_sizes(const ModelConfig& config, const std::filesystem::path& model);

// Returns the weight in Yarn's formula of what cosine and sine are divided by; 0: they are not.
double gguf_yarn_log_multiplier(const RopeParameters& rope);

// A tensor of what each rotary frequency is divided by.
struct GgufRopeFactors {
  std::string_view tensor;
  std::vector<float> factors;
};

// Returns the divisors of rotary frequencies: of Llama 3.1's scaling one tensor, of LongRope one for long texts and one
// for others; none where frequencies are not divided by tensors.
std::vector<GgufRopeFactors> gguf_rope_factors(const ModelSpec& spec);

}  // namespace snug
