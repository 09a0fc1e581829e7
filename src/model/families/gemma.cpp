// Gemma 1 and 1.1 (also CodeGemma): Llama with gains of 1 + weight, GeGLU and scaled embeddings.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject& json) {
  ModelSpec model = llama_decoder(config);
  become_gemma(model, json);
  return model;
}

}  // namespace

Family gemma() { return {gemma_names("gemma", "GemmaForCausalLM", 16), spec}; }

}  // namespace snug::families
