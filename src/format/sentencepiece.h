// Models of SentencePiece (Kudo and Richardson, arXiv:1808.06226) whose type is BPE: what tokenizer.model and GGUF
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
  static constexpr size_t kMaxPieceBytes = 1024;  // bounds the ways in which a piece is cut

  // By the numbers of both file formats.
  enum class Type : uint8_t { Normal = 1, Unknown, Control, UserDefined, Unused, Byte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::Normal;
  };
  // A pair of pieces that may be joined, by their ids.
  struct Merge {
    int32_t left, right, joined;
    uint32_t rank;  // lower ones first; of one rank are those that make the same piece, or pieces of one score
  };

  std::vector<Piece> pieces;      // by id
  bool adds_prefix = true;        // a text begins with one more "▁"
  bool collapses_spaces = false;  // at both ends there are none, elsewhere one at most in a row
  bool byte_fallback = false;
  std::optional<int32_t> bos, eos, unknown;

  // Every way in which a piece is two others, the highest score first, and of one piece the one with the longest left
  // side.
  std::vector<Merge> merges() const;
};

// Reads a tokenizer.model. UserError with `source`, the file's name, for broken files, other types of model (unigram),
// and options that are not supported, by name.
SentencePieces parse_sentencepiece(std::string_view bytes, const std::string& source);

}  // namespace snug
