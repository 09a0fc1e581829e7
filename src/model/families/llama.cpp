// Llama 1 to 3.3, and the many models that say that they are one.
#include "model/families.h"

namespace snug::families {
namespace {

ModelSpec spec(const HfConfig& config, const JsonObject&) { return llama_decoder(config); }

}  // namespace

Family llama() { return {{.model_type = "llama", .architecture = "LlamaForCausalLM", .bos = 1, .eos = 2}, spec}; }

}  // namespace snug::families
