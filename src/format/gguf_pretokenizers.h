// How GGUF files name what cuts a text before byte-level merges, and the parts of a tokenizer.json that it stands for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/json.h"

namespace snug {

struct GgufPreTokenizer {
  std::string_view name;  // tokenizer.ggml.pre
  bool whole_words;       // a word that is a token is taken as it is, whatever the merges say
  bool normalizes_nfc;
  bool starts_with_bos;  // where tokenizer.ggml.add_bos_token does not say
  Json pre_tokenizer;    // of tokenizer.json
};

// Nothing for names that are not known.
std::optional<GgufPreTokenizer> find_gguf_pre_tokenizer(std::string_view name);
// The name of what cuts as this pre_tokenizer of a tokenizer.json does; nothing where none of those known does. Of
// several the one that normalises as this does; what reads GGUF files without snug normalises nothing.
std::optional<std::string> gguf_pre_tokenizer_name(const Json& pre_tokenizer, bool whole_words, bool normalizes_nfc);
// All names, for messages.
std::string gguf_pre_tokenizer_names();

}  // namespace snug
