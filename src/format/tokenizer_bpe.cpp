#include "format/tokenizer_bpe.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/error.h"
#include "format/byte_letters.h"
#include "format/token_decoder.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr int32_t kNone = -1, kMerged = -2;
constexpr size_t kFew = 48;  // symbols up to which examining all of them each time is faster
constexpr uint32_t kNeverJoined = UINT32_MAX;

// Holds pairs that wait to be joined, by rank and then by place. Most pairs that a join makes rank behind all that
// wait, so they are only put in order when those are done: `ordered` from `next_` on is ascending, `early` is a heap of
// pairs that arrived since and come before its end, `late` holds those that come after. Each is 64 bits, the rank above
// the place.
class PairQueue {
 public:
  explicit PairQueue(BytePairModel::Scratch& scratch)
      : ordered_(scratch.ordered), early_(scratch.early), late_(scratch.late) {
    ordered_.clear();
    early_.clear();
    late_.clear();
  }

  void push(uint32_t rank, int32_t place) {
    const uint64_t pair = uint64_t{rank} << 32 | static_cast<uint32_t>(place);
    if (ordered_.empty() || pair > ordered_.back()) {
      late_.push_back(pair);
    } else {
      early_.push_back(pair);
      std::push_heap(early_.begin(), early_.end(), std::greater<>());
    }
  }

  struct Pair {
    uint32_t rank;
    int32_t place;
  };
  std::optional<Pair> pop() {
    if (next_ == ordered_.size() && early_.empty()) put_late_in_order();
    uint64_t least = 0;
    if (!early_.empty() && (next_ == ordered_.size() || early_.front() < ordered_[next_])) {
      std::pop_heap(early_.begin(), early_.end(), std::greater<>());
      least = early_.back();
      early_.pop_back();
    } else if (next_ < ordered_.size()) {
      least = ordered_[next_++];
    } else {
      return {};
    }
    return Pair{static_cast<uint32_t>(least >> 32), static_cast<int32_t>(least & 0xffffffff)};
  }

 private:
  void put_late_in_order() {
    ordered_.clear();
    next_ = 0;
    std::swap(ordered_, late_);
    if (!std::is_sorted(ordered_.begin(), ordered_.end())) std::sort(ordered_.begin(), ordered_.end());
  }

  std::vector<uint64_t>&ordered_, &early_, &late_;
  size_t next_ = 0;
};

uint64_t joined_hash(char32_t left, char32_t right) { return (uint64_t{left} << 21 | right) * 0x9e3779b97f4a7c15; }

}  // namespace

BytePairModel::CharacterIds::CharacterIds(const Vocabulary& vocabulary) {
  ascii_.fill(kNone);
  std::vector<Slot> found;
  for (const auto& [text, id] : vocabulary) {
    if (text.empty() || find_invalid_utf8(text) || decode_utf8(text, 0).bytes != text.size()) continue;
    const char32_t character = decode_utf8(text, 0).value;
    if (character < ascii_.size()) {
      ascii_[character] = id;
    } else {
      found.push_back({character, id});
    }
  }
  slots_.resize(std::bit_ceil(2 * found.size() + 1));
  for (const Slot& slot : found) slots_[slot_of(slot.character)] = slot;
}

size_t BytePairModel::CharacterIds::slot_of(char32_t c) const {
  const size_t last = slots_.size() - 1;
  size_t slot = static_cast<size_t>(uint64_t{c} * 0x9e3779b97f4a7c15 >> 32) & last;
  while (slots_[slot].character != c && slots_[slot].character != kFree) slot = (slot + 1) & last;
  return slot;
}

int32_t BytePairModel::CharacterIds::find(char32_t c) const {
  return c < ascii_.size() ? ascii_[c] : slots_[slot_of(c)].id;
}

void BytePairModel::Scratch::shrink() {
  constexpr size_t kEnough = size_t{1} << 16;
  if (start.capacity() <= kEnough && letters.capacity() <= kEnough) return;
  start = {};
  symbols = {};
  ordered = {};
  early = {};
  late = {};
  letters = {};
}

BytePairModel::BytePairModel(Vocabulary vocabulary, MergeTable merges, const Options& options,
                             const std::vector<std::string>& merged_texts)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(options), character_ids_(vocabulary_) {
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary_.find(token);
    return found == vocabulary_.end() ? kNone : found->second;
  };
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_utf8(byte_letter(static_cast<unsigned char>(byte)), letter);
    byte_ids_[byte] = id_of(letter);
    fallback_ids_[byte] = options_.byte_fallback ? id_of(fallback_token(static_cast<unsigned char>(byte))) : kNone;
  }
  if (!options_.byte_level) find_seams(merged_texts);
}

// Finds which characters stand side by side in what merges make: between any other two a text can be cut.
void BytePairModel::find_seams(const std::vector<std::string>& merged_texts) {
  size_t pairs = 0;
  for (const std::string& text : merged_texts) pairs += text.size();
  const size_t bits = std::bit_ceil(std::clamp<size_t>(4 * pairs, 1024, size_t{1} << 22));
  joined_shift_ = 64 - static_cast<unsigned>(std::countr_zero(bits));
  joined_.assign(bits / 64, 0);
  for (const std::string& text : merged_texts) {
    char32_t before = 0;
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = decode_utf8(text, at);
      const uint64_t hash = joined_hash(before, point.value) >> joined_shift_;
      if (at > 0) joined_[hash / 64] |= uint64_t{1} << hash % 64;
      before = point.value;
      at += point.bytes;
    }
  }
  // Unknowns and bytes have a text that is not theirs, and could be joined where no characters are; the neighbours of
  // a character that is left out could be joined across it.
  std::vector<int32_t> apart(fallback_ids_.begin(), fallback_ids_.end());
  std::sort(apart.begin(), apart.end());
  const bool leaves_out = options_.unknown == kNone && apart.front() == kNone;
  apart.push_back(options_.unknown);
  std::sort(apart.begin(), apart.end());
  has_seams_ = !leaves_out && !merges_.has_side_among(apart);
}

bool BytePairModel::joins(char32_t left, char32_t right) const {
  const uint64_t hash = joined_hash(left, right) >> joined_shift_;
  return joined_[hash / 64] >> hash % 64 & 1;
}

void BytePairModel::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  options_.byte_level ? encode_bytes(word, scratch, ids) : encode_characters(word, scratch, ids);
}

// Encodes one symbol a byte; bytes without a token become unknowns or nothing.
void BytePairModel::encode_bytes(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (scratch.cache.append(word, ids)) return;
  if (options_.whole_words) {
    scratch.letters.clear();
    for (const char byte : word) append_utf8(byte_letter(static_cast<unsigned char>(byte)), scratch.letters);
    if (const auto found = vocabulary_.find(scratch.letters); found != vocabulary_.end()) {
      ids.push_back(found->second);
      scratch.cache.keep(word, std::span(&ids.back(), 1));
      return;
    }
  }
  scratch.start.clear();
  bool after_unknown = false;
  for (const char byte : word) {
    int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    const bool is_unknown = id == kNone;
    if (is_unknown) {
      if (options_.unknown == kNone || (after_unknown && options_.fuse_unknown)) continue;
      id = options_.unknown;
    }
    after_unknown = is_unknown;
    scratch.start.push_back(id);
  }
  const size_t before = ids.size();
  join_and_append(scratch, ids);
  scratch.cache.keep(word, std::span(ids).subspan(before));
}

// Encodes a word, which may be a whole text, stretch by stretch between seams.
void BytePairModel::encode_characters(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (options_.whole_words) {
    if (const auto found = vocabulary_.find(std::string(word)); found != vocabulary_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = add_stretch(word, begin, scratch);
    const std::string_view stretch = word.substr(begin, end - begin);
    if (!scratch.cache.append(stretch, ids)) {
      const size_t before = ids.size();
      join_and_append(scratch, ids);
      scratch.cache.keep(stretch, std::span(ids).subspan(before));
    }
    begin = end;
  }
}

// Adds the symbols from `begin` to the next seam, and returns its place. As in the library, an unknown waits for the
// next character that has a token or is unknown too; bytes do not end it.
size_t BytePairModel::add_stretch(std::string_view word, size_t begin, Scratch& scratch) const {
  auto& start = scratch.start;
  start.clear();
  int waiting = 0;  // unknowns
  bool known_before = false;
  char32_t before = 0;
  size_t at = begin;
  while (at < word.size()) {
    const CodePoint point = decode_utf8(word, at);
    const int32_t id = character_ids_.find(point.value);
    const bool known = id != kNone;
    const bool seam = has_seams_ && waiting == 0 && !(known && known_before && joins(before, point.value));
    if (seam && at > begin) return at;
    known_before = known;
    before = point.value;
    const std::string_view bytes = word.substr(at, point.bytes);
    at += point.bytes;
    const auto fallback = [&](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)]; };
    if (known) {
      if (std::exchange(waiting, 0) > 0) start.push_back(options_.unknown);
      start.push_back(id);
    } else if (std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return fallback(byte) != kNone; })) {
      for (const char byte : bytes) start.push_back(fallback(byte));
    } else if (options_.unknown != kNone) {
      if (waiting > 0 && !options_.fuse_unknown) start.push_back(options_.unknown);
      waiting = 1;
    }
  }
  if (waiting > 0) start.push_back(options_.unknown);
  return at;
}

void BytePairModel::join_and_append(Scratch& scratch, std::vector<int32_t>& ids) const {
  if (scratch.start.size() > kFew) {
    join_many(scratch);
  } else if (scratch.start.size() > 1) {
    join_few(scratch);
  }
  ids.insert(ids.end(), scratch.start.begin(), scratch.start.end());
}

// Joins the pair of lowest rank, the leftmost of equals, until none is left.
void BytePairModel::join_few(Scratch& scratch) const {
  struct Next {
    uint32_t rank = kNeverJoined;
    int32_t id = 0;
  };
  auto& symbols = scratch.start;
  std::array<Next, kFew> next;  // by symbol: the merge with its right neighbour
  const auto look_up = [&](size_t place) {
    const auto* const merge = merges_.find(symbols[place], symbols[place + 1]);
    next[place] = merge ? Next{merge->rank, merge->id} : Next{};
  };
  size_t count = symbols.size();
  for (size_t place = 0; place + 1 < count; ++place) look_up(place);
  while (count > 1) {
    size_t best = 0;
    for (size_t place = 1; place + 1 < count; ++place) {
      if (next[place].rank < next[best].rank) best = place;
    }
    if (next[best].rank == kNeverJoined) break;
    symbols[best] = next[best].id;
    for (size_t place = best + 1; place + 1 < count; ++place) {
      symbols[place] = symbols[place + 1];
      next[place] = next[place + 1];
    }
    --count;
    if (best + 1 < count) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  symbols.resize(count);
}

// Joins pairs in words of any length.
void BytePairModel::join_many(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  for (const int32_t id : scratch.start) {
    const auto place = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, place - 1, place + 1});
  }
  symbols.back().right = -1;
  const auto at = [&](int32_t place) -> Scratch::Symbol& { return symbols[static_cast<size_t>(place)]; };
  PairQueue queue(scratch);
  const auto queue_pair = [&](int32_t left) {
    const int32_t right = at(left).right;
    if (right < 0) return;
    if (const auto* merge = merges_.find(at(left).id, at(right).id)) queue.push(merge->rank, left);
  };

  for (int32_t place = 0; place < static_cast<int32_t>(symbols.size()); ++place) queue_pair(place);
  while (const auto pair = queue.pop()) {
    Scratch::Symbol& left = at(pair->place);
    if (left.id == kMerged || left.right < 0) continue;
    Scratch::Symbol& right = at(left.right);
    const auto* merge = merges_.find(left.id, right.id);
    if (!merge || merge->rank != pair->rank) continue;  // one of the two has changed since
    left.id = merge->id;
    right.id = kMerged;
    left.right = right.right;
    if (left.right >= 0) at(left.right).left = pair->place;
    if (left.left >= 0) queue_pair(left.left);
    queue_pair(pair->place);
  }
  scratch.start.clear();
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id != kMerged) scratch.start.push_back(symbol.id);
  }
}

}  // namespace snug
