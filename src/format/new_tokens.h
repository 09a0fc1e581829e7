// Adds tokens to a model's tokenizer, as the `tokenizers` library and transformers do with add_tokens().
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "format/tokenizer.h"

namespace snug {

// Returns those of the tokens whose text is none of the tokenizer's, with the ids behind its largest in their order. A
// new token is found wherever its text stands: of its fields, `content` and `special` count.
std::vector<AddedToken> number_tokens(const Tokenizer& tokenizer, std::span<const AddedToken> wanted);

// Returns a tokenizer's files with tokens added: in tokenizer.json, or beside a tokenizer.model in added_tokens.json,
// and in tokenizer_config.json. Throws UserError for files that are broken; `place` precedes their names.
Tokenizer::Files with_new_tokens(Tokenizer::Files files, std::span<const AddedToken> tokens, const std::string& place);

// Writes those of the files in `directory`, which has the tokenizer, that with_new_tokens() changes.
void write_new_tokens(const std::filesystem::path& directory, std::span<const AddedToken> tokens);

}  // namespace snug
