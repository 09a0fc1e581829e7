// Names how a GGUF file's text is cut before byte-level merges, with the parts of a tokenizer.json that cut alike.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/json.h"

namespace snug {

struct GgufPreTokenizer {
  std::string_view name;  // tokenizer.ggml.pre
  bool whole_words;       // a word that is a token becomes that token, whatever the merges say
  bool normalizes_nfc;
  bool starts_with_bos;  // if tokenizer.ggml.add_bos_token is absent
  Json pre_tokenizer;    // of tokenizer.json
};

// Returns the pre-tokenizer of a name; nothing for unknown names.
std::optional<GgufPreTokenizer> find_gguf_pre_tokenizer(std::string_view name);
// Returns the name of what cuts as this pre_tokenizer of a tokenizer.json does; nothing if no known one does. Of
// several it is the one that normalises as this does; other programs that read GGUF files normalise nothing.
std::optional<std::string> gguf_pre_tokenizer_name(const Json& pre_tokenizer, bool whole_words, bool normalizes_nfc);
// Returns all names, for messages.
std::string gguf_pre_tokenizer_names();

}  // namespace snug
