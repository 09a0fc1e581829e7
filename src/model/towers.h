// Towers of multimodal models: each turns the configuration of a model of texts and images into the tower of its spec.
#pragma once

#include "format/json.h"
#include "model/spec.h"

namespace snug::towers {

// Give the text model a tower: put its layers before the text's. `config` is the whole model's. UserError naming key,
// found and expected for what is not supported.
void qwen2_vl(ModelSpec& text, const JsonObject& config);
void qwen2_5_vl(ModelSpec& text, const JsonObject& config);

}  // namespace snug::towers
