// Reads models of SentencePiece (Kudo and Richardson, arXiv:1808.06226) of type BPE, which tokenizer.model and GGUF
// files hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct SentencePieces {
  static constexpr size_t kMaxPieceBytes = 1024;  // bounds the number of ways to cut a piece

  // Says what a piece is, by the numbers of both file formats.
  enum class Type : uint8_t { Normal = 1, Unknown, Control, UserDefined, Unused, Byte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::Normal;
  };
  // Holds a pair of pieces that may be joined, by their ids.
  struct Merge {
    int32_t left, right, joined;
    uint32_t rank;  // lower first; equal for merges that make one piece, or pieces of one score
  };

  std::vector<Piece> pieces;      // by id
  bool adds_prefix = true;        // a text begins with one more "▁"
  bool collapses_spaces = false;  // at both ends there are none, else at most one in a row
  bool byte_fallback = false;
  std::optional<int32_t> bos, eos, unknown;

  // Returns every way in which a piece is two others, the highest score first, and for one piece the one with the
  // longest left side first.
  std::vector<Merge> merges() const;
};

// Reads a tokenizer.model. Throws UserError with `source`, the file's name, for broken files, other types of model
// (unigram), and options that are not supported, by name.
SentencePieces parse_sentencepiece(std::string_view bytes, const std::string& source);

}  // namespace snug
