// Model families: each turns a configuration into what the model is. A family is one file of names, shapes and switches
// (model/families/).
#pragma once

#include "format/hf_config.h"
#include "model/spec.h"

namespace snug {

// Llama 1 to 3.3, and whatever else says that it is one.
ModelSpec llama(const HfConfig& config);
// Qwen2 and 2.5: Llama with biases on queries, keys and values, and in some layers a window.
ModelSpec qwen2(const HfConfig& config);

// By the configuration's architecture.
ModelSpec spec_of(const HfConfig& config);

}  // namespace snug
