#include "model/model_config.h"

#include "model/families.h"

namespace snug {

ModelSpec spec_of(const HfConfig& config) {
  switch (config.architecture) {
    case Architecture::LlamaForCausalLM:
      return llama(config);
    case Architecture::Qwen2ForCausalLM:
      return qwen2(config);
  }
  internal_error("no family has architecture {}", static_cast<int>(config.architecture));
}

ModelConfig read_model_config(const std::filesystem::path& directory) {
  const HfConfig config = read_hf_config(directory);
  return {.spec = spec_of(config),
          .end_tokens = config.eos,
          .dtype = config.dtype,
          .quantization = config.quantization,
          .prediction_layers = config.prediction_layers,
          .dropout = config.dropout,
          .notes = config.notes};
}

}  // namespace snug
