// What a model is in the terms of GGUF.
#pragma once

#include <filesystem>
#include <vector>

#include "format/gguf_architecture.h"
#include "model/model_config.h"

namespace snug {

// UserError where GGUF's architectures have no such model: by family, layer, or how it is stored.
GgufSizes gguf_sizes(const ModelConfig& config, const std::filesystem::path& model);

// What each rotary frequency is divided by; none where they are as they are.
std::vector<float> gguf_rope_factors(const ModelSpec& spec);

}  // namespace snug
