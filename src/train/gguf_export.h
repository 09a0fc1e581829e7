// Models and adapters as GGUF files, which llama.cpp and Ollama run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/heartbeat.h"
#include "format/gguf_quantize.h"

namespace snug {

// Writes the weights of the directory `model`, with configuration, tokenizer and chat template of the directory
// `files`, to `file`, titled `title`. Some MiB of each tensor are held at a time. Returns what is narrowed, or said
// otherwise in GGUF, a line each. UserError for families, layers, tokenizers and values that GGUF has no form for, by
// name.
std::vector<std::string> export_gguf_model(const std::filesystem::path& model, const std::filesystem::path& files,
                                           const std::filesystem::path& file, GgufFileType type,
                                           const std::string& title, const Heartbeat& heartbeat = {});

// Writes a PEFT adapter of a model to `file`, in fp32: A and B of each linear by the linear's own name in GGUF. Its one
// lora_alpha is that of the first linear; where others are scaled otherwise, their B is. UserError for adapters that
// have more than these, by tensor.
std::vector<std::string> export_gguf_adapter(const std::filesystem::path& model, const std::filesystem::path& adapter,
                                             const std::filesystem::path& file, const Heartbeat& heartbeat = {});

}  // namespace snug
