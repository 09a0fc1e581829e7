// Towers of multimodal models: each turns the configuration of a model of texts and images into the tower of its spec.
#pragma once

#include "format/json.h"
#include "model/spec.h"

namespace snug::towers {

// Give the text model a tower: put its layers before the text's. `config` is the whole model's. UserError naming key,
// found and expected for what is not supported.
void qwen2_vl(ModelSpec& text, const JsonObject& config);
void qwen2_5_vl(ModelSpec& text, const JsonObject& config);
// MiniCPM-Llama3-V 2.5: SigLIP (Zhai et al., arXiv:2303.15343) over views of a picture, each with rows of position of
// its own, and a resampler.
void minicpm_v(ModelSpec& text, const JsonObject& config);

// OmniLMM-12B: an EVA CLIP tower (Sun et al., arXiv:2303.15389) of timm's over images of one size, and a resampler.
// The configuration only names the tower; sizes in a `vision_config`, by timm's names, go before those of the name.
void omnilmm(ModelSpec& text, const JsonObject& config);

// Returns the fewest patches of a view of about resolution^2 pixels whose sides are rounded to patches, of any picture
// whose sides are to each other as 1 to `aspect` at most.
int64_t least_patches(int64_t resolution, int64_t patch, double aspect);

}  // namespace snug::towers
