// Caches words that were encoded before, with their tokens: in any language a few thousand words make up most of a
// text.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace snug {

// A cached word takes the place of another. Takes 1 MiB once it holds a word; threads must not share it.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 24, kMaxTokens = 9;

  // Appends the tokens of a word and returns true, if the word is cached.
  bool append(std::string_view word, std::vector<int32_t>& ids) const {
    if (word.size() > kMaxBytes || slots_.empty()) return false;
    const Key key = key_of(word);
    const Slot& slot = slots_[place_of(key)];
    if (slot.bytes != word.size() || slot.key != key) return false;
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.tokens);
    return true;
  }

  void keep(std::string_view word, std::span<const int32_t> ids) {
    if (word.size() > kMaxBytes || ids.size() > kMaxTokens) return;
    if (slots_.empty()) slots_.resize(kSlots);
    const Key key = key_of(word);
    Slot& slot = slots_[place_of(key)];
    slot.key = key;
    slot.bytes = static_cast<uint8_t>(word.size());
    slot.tokens = static_cast<uint8_t>(ids.size());
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
  }

 private:
  static constexpr unsigned kBits = 14;
  static constexpr size_t kSlots = size_t{1} << kBits;
  using Key = std::array<uint64_t, kMaxBytes / 8>;  // the word's bytes, and zeros
  struct Slot {
    Key key{};
    uint8_t bytes = 0, tokens = 0;  // no word has 0 bytes
    std::array<int32_t, kMaxTokens> ids{};
  };

  static Key key_of(std::string_view word) {
    Key key{};
    std::memcpy(key.data(), word.data(), word.size());
    return key;
  }
  static size_t place_of(const Key& key) {
    constexpr uint64_t kMix = 0x9e3779b97f4a7c15;
    uint64_t hash = 0;
    for (const uint64_t part : key) hash = (hash ^ part ^ hash >> 29) * kMix;
    return hash >> (64 - kBits);
  }

  std::vector<Slot> slots_;
};

}  // namespace snug
