// Writes models and adapters as GGUF files, which llama.cpp and Ollama run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/heartbeat.h"
#include "format/gguf_quantize.h"
#include "model/model_config.h"

namespace snug {

// Writes the weights of the directory `model`, which is `config`, with tokenizer and chat template of the directory
// `files`, to `file`, titled `title`. A few MiB of each tensor are in memory at a time. Returns a line for everything
// that is narrowed or expressed otherwise in GGUF. Throws UserError that names families, layers, tokenizers and values
// for which GGUF has no form.
std::vector<std::string> export_gguf_model(const ModelConfig& config, const std::filesystem::path& model,
                                           const std::filesystem::path& files, const std::filesystem::path& file,
                                           GgufFileType type, const std::string& title,
                                           const Heartbeat& heartbeat = {});

// Writes a PEFT adapter of a model, which is `config`, to `file`, in fp32: A and B of each linear by the linear's name
// in GGUF. The file's only lora_alpha is that of the first linear; B of linears with another scale is scaled. Throws
// UserError, by tensor, for adapters that have more than these.
std::vector<std::string> export_gguf_adapter(const ModelConfig& config, const std::filesystem::path& model,
                                             const std::filesystem::path& adapter, const std::filesystem::path& file,
                                             const Heartbeat& heartbeat = {});

}  // namespace snug
