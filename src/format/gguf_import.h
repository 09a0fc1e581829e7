// Turns a GGUF file into a model directory in Hugging Face's layout, which snug and transformers read.
#pragma once

#include <filesystem>
#include <string>

#include "base/file.h"
#include "format/gguf.h"

namespace snug {

// Writes config.json, generation_config.json, model.safetensors (bf16), tokenizer.json and tokenizer_config.json with
// the chat template to `out`, which appears only when it is complete. Tensors pass through a few MiB whatever their
// size. Architectures: llama, qwen2. Tokenizers: byte-level BPE with the pre-tokenisers smollm, llama-bpe, qwen2, and
// SentencePiece's BPE.
// UserError for anything else, by name.
void import_gguf(const std::filesystem::path& file, const std::filesystem::path& out, Existing existing);

// The text of config.json for a file's metadata.
std::string gguf_model_config(const GgufHeader& header);
// The text of generation_config.json.
std::string gguf_generation_config(const GgufHeader& header);
// The text of tokenizer.json, as the `tokenizers` library reads it.
std::string gguf_tokenizer(const GgufHeader& header);
// The text of tokenizer_config.json.
std::string gguf_tokenizer_config(const GgufHeader& header);

}  // namespace snug
