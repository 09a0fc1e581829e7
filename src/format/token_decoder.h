// Returns what tokens stand for: tokenizer.json's `decoder`.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"

namespace snug {

class TokenDecoder {
 public:
  // Reads ByteLevel, Replace (of a text), ByteFallback, Fuse, Strip and Metaspace, alone or in Sequences. Behind Fuse,
  // which makes all tokens one text, only Strip from the left may come. Throws UserError naming any other type or
  // option.
  static TokenDecoder parse(const JsonObject& file, const std::string& source);
  // Returns SentencePiece's decoder: a space for each "▁", `prefix` of them less at the start, and bytes for "<0xNN>".
  static TokenDecoder of_sentencepiece(bool prefix);

  // Returns the bytes of a token behind other ones (`first` is false) or at the start of a text.
  std::string bytes(std::string_view token, bool first) const;

  // Leaves out what Strip takes from the start of a whole text, while the text goes out token by token, in order.
  class Start {
   public:
    explicit Start(const TokenDecoder& decoder) : left_(decoder.strip_.size()) {}
    // Returns the part of a token's bytes that is to be shown.
    std::string_view next(const TokenDecoder& decoder, std::string_view bytes);
    bool at_first_token() const { return at_first_token_; }

   private:
    size_t left_;
    bool at_first_token_ = true;
  };

 private:
  enum class Kind { ByteLevel, Replace, ByteFallback, Strip, Metaspace };
  struct Step {
    Kind kind;
    std::string from{}, to{};
    size_t left = 0, right = 0;  // Strip: number of `from` to take
    bool drops_first = false;    // Metaspace: the first token's are dropped
  };
  void add(const JsonObject& json, const std::string& source, int depth);
  void add_strip(const JsonObject& json);

  std::vector<Step> steps_;
  bool fused_ = false;
  std::string strip_;  // Behind Fuse: what is taken from the start, one byte each, all equal.
};

// Returns the byte for which a token "<0xNN>" stands.
std::optional<unsigned char> fallback_byte(std::string_view token);
std::string fallback_token(unsigned char byte);

}  // namespace snug
