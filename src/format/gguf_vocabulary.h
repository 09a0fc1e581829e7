// A model directory's tokenizer and chat template as the metadata of a GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "format/gguf_writer.h"

namespace snug {

// Adds tokens, what cuts and joins them, special tokens and the chat template. `vocabulary`: rows of the embedding,
// which rows without a token pad. `end_tokens`: any of them ends a reply; the first that is not the tokenizer's own EOS
// is written as the end of a turn. Returns what llama.cpp does otherwise than the tokenizer, a line each. UserError for
// tokenizers that GGUF has no form for, by file and key.
std::vector<std::string> add_gguf_tokenizer(GgufWriter& writer, const std::filesystem::path& directory,
                                            int64_t vocabulary, const std::vector<int64_t>& end_tokens);

}  // namespace snug
