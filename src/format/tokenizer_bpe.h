// Encodes by byte pairs (Sennrich, Haddow and Birch, arXiv:1508.07909), one word at a time, over the bytes of its UTF-8
// or over its characters.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/json.h"
#include "format/merge_table.h"
#include "format/word_cache.h"

namespace snug {

constexpr int64_t kMaxTokenId = int64_t{1} << 30;

// Holds the `model` of a tokenizer.json. Immutable, so that threads may share it.
class BytePairModel {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;  // by the text in tokenizer.json
  struct Options {
    bool byte_level = false;  // words are bytes in the byte-level alphabet, else characters
    bool byte_fallback =
        false;  // a character without a token becomes the tokens "<0xNN>" of its bytes, if all are there
    bool fuse_unknown = false;  // neighbours without a token become a single unknown
    bool whole_words = false;   // a word that is a token becomes that token, whatever the merges say
    int32_t unknown = -1;       // the token for what has none; -1: that is left out
  };

  // Reads a model. Throws UserError naming a type other than BPE, an option that is not supported (dropout, affixes,
  // byte_fallback that would act on byte-level words), a merge of unknown tokens, or an id that two tokens share.
  static BytePairModel parse(const JsonObject& json, bool byte_level);
  // `merged_texts` holds what each of the merges makes, in UTF-8.
  BytePairModel(Vocabulary vocabulary, MergeTable merges, const Options& options,
                const std::vector<std::string>& merged_texts);

  // Holds memory for encode_word(), reused from word to word, and words that were encoded before. It serves one thread
  // and one model.
  struct Scratch {
    struct Symbol {
      int32_t id;           // or the mark that it is joined to the symbol on its left
      int32_t left, right;  // indices of the neighbours, -1: none
    };
    std::vector<int32_t> start;  // the symbols of a word before they are joined, and what they become
    std::vector<Symbol> symbols;
    std::vector<uint64_t> ordered, early, late;
    std::string letters;
    WordCache cache;

    // Gives back what a very long word took.
    void shrink();
  };
  // Appends the tokens of one word that is not empty and shorter than 2 GiB, in UTF-8 unless words are bytes. It takes
  // time n log n in its length at most.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  // Finds ids of characters by code point: open addressing, the size is a power of two.
  class CharacterIds {
   public:
    explicit CharacterIds(const Vocabulary& vocabulary);
    int32_t find(char32_t c) const;

   private:
    struct Slot {
      char32_t character = kFree;
      int32_t id = -1;
    };
    static constexpr char32_t kFree = 0x110000;
    size_t slot_of(char32_t c) const;
    std::array<int32_t, 0x80> ascii_{};
    std::vector<Slot> slots_;
  };

  void find_seams(const std::vector<std::string>& merged_texts);
  bool joins(char32_t left, char32_t right) const;
  void encode_bytes(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_characters(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  size_t add_stretch(std::string_view word, size_t begin, Scratch& scratch) const;
  void join_and_append(Scratch& scratch, std::vector<int32_t>& ids) const;
  void join_few(Scratch& scratch) const;
  void join_many(Scratch& scratch) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  Options options_;
  std::array<int32_t, 256> byte_ids_{};      // by byte, in the byte-level alphabet; -1 if there is no token
  std::array<int32_t, 256> fallback_ids_{};  // by byte: those of "<0xNN>"
  CharacterIds character_ids_;
  std::vector<uint64_t> joined_;  // a bit for each hash of two characters that stand side by side in a merged token
  unsigned joined_shift_ = 0;     // the shift that makes it an index
  bool has_seams_ = false;        // characters that never stand so are never joined
};

}  // namespace snug
