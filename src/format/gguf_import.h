// Turns a GGUF file into a model directory in Hugging Face's layout, which snug and transformers read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "format/gguf.h"

namespace snug {

// Writes config.json, generation_config.json, model.safetensors (bf16), tokenizer.json and tokenizer_config.json with
// the chat template to `out`, which appears only when it is complete. `file` may be any part of a split model. A few
// MiB of a tensor are in memory at a time. It takes the architectures of gguf_architecture.h, and as tokenizers
// byte-level BPE with the pre-tokenizers of gguf_pretokenizers.h and SentencePiece's BPE. Returns a line for everything
// that was narrowed or not used, first what all values were rounded to. Throws UserError for anything else, by name.
std::vector<std::string> import_gguf(const std::filesystem::path& file, const std::filesystem::path& out,
                                     Existing existing);

// Throws UserError for what import_gguf() refuses by a file's header.
void check_gguf(const std::filesystem::path& file);

// Returns the text of config.json for a file's metadata.
std::string gguf_model_config(const GgufHeader& header);
// Returns the text of generation_config.json.
std::string gguf_generation_config(const GgufHeader& header);
// Returns the text of tokenizer.json, as the `tokenizers` library reads it.
std::string gguf_tokenizer(const GgufHeader& header);
// Returns the text of tokenizer_config.json.
std::string gguf_tokenizer_config(const GgufHeader& header);
// Returns keys of the architecture that decide nothing of what is written.
std::vector<std::string> gguf_unused_keys(const GgufHeader& header);
// Returns the token of "bos", "eos", "eot", "padding" or "unknown", below `vocabulary`; nothing if there is none.
std::optional<int64_t> gguf_token_id(const GgufHeader& header, std::string_view role, int64_t vocabulary);

}  // namespace snug
