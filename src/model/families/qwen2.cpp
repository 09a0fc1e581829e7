#include "model/families.h"

namespace snug {

ModelSpec qwen2(const HfConfig& config) {
  ModelSpec spec = llama(config);
  for (size_t i = 0; i < spec.layers.size(); i++) {
    spec.layers[i].qkv.bias = true;
    spec.layers[i].window = config.window(static_cast<int64_t>(i));
  }
  return spec;
}

}  // namespace snug
