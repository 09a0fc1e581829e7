// Byte-pair encoding (Sennrich, Haddow and Birch, arXiv:1508.07909) of one word at a time, over the bytes of its UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/json.h"

namespace snug {

constexpr int64_t kMaxTokenId = int64_t{1} << 30;

// tokenizer.json writes each byte of a token as one printable character (GPT-2's alphabet, all below U+0180).
// The character for a byte.
char32_t byte_letter(unsigned char byte);
// The bytes that a token's text stands for; nothing if a character is not of the alphabet.
std::optional<std::string> bytes_of_letters(std::string_view text);

// Which pairs of tokens join, in which order, and what they become.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;  // lower ones are applied first
    int32_t id;     // the token that the pair becomes
  };

  explicit MergeTable(size_t capacity);
  // A pair's later entry replaces its earlier one. InternalError beyond the capacity.
  void insert(int32_t left, int32_t right, Merge merge);
  // Null if the two do not join.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge{};
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  // open addressing; the size is a power of two
  size_t capacity_, used_ = 0;
};

// The `model` of a tokenizer.json. Immutable, so threads may share it.
class BytePairModel {
 public:
  // UserError naming a type other than BPE, an option that changes byte-level words and is not supported (dropout,
  // affixes, byte_fallback that would act), a merge of unknown tokens, or an id that two tokens share.
  static BytePairModel parse(const JsonObject& json);

  // Memory for encode_word(), reused from word to word. One thread each.
  struct Scratch {
    struct Symbol {
      int32_t id;           // kMerged: joined to the symbol on its left
      int32_t left, right;  // indices of the neighbours, -1: none
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> ordered, early, late;
    std::string letters;
  };
  // Appends the tokens of one word that is not empty and shorter than 2 GiB. Time n log n in its length at most.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  const std::unordered_map<std::string, int32_t>& vocabulary() const { return vocabulary_; }

 private:
  BytePairModel(std::unordered_map<std::string, int32_t> vocabulary, MergeTable merges)
      : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)) {}
  void start_word(std::string_view word, Scratch& scratch) const;
  void join_pairs(Scratch& scratch) const;

  std::unordered_map<std::string, int32_t> vocabulary_;  // by the text in tokenizer.json
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};  // kNone where no token is this byte
  int32_t unknown_ = 0;                  // for bytes without a token; kNone: they are left out
  bool fuse_unknown_ = false;            // neighbours without a token become one unknown
  bool whole_words_ = false;             // a word that is a token is that token, whatever the merges say
};

}  // namespace snug
