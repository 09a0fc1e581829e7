// Writes a model directory's tokenizer and chat template as the metadata of a GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "format/gguf_writer.h"

namespace snug {

// Adds tokens, what cuts and joins them, special tokens and the chat template. `vocabulary` is the number of the
// embedding's rows, of which those without a token are padding. Any of `end_tokens` ends a reply; the first that is not
// the tokenizer's EOS is written as the end of a turn. Returns a line for everything that llama.cpp does otherwise than
// the tokenizer. Throws UserError, by file and key, for tokenizers for which GGUF has no form.
std::vector<std::string> add_gguf_tokenizer(GgufWriter& writer, const std::filesystem::path& directory,
                                            int64_t vocabulary, const std::vector<int64_t>& end_tokens);

}  // namespace snug
