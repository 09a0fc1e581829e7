#include "format/tokenizer_bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr int32_t kNone = -1, kMerged = -2;

// Printable Latin-1 stands for itself; the other 68 bytes take U+0100 and what follows, in their order.
constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

constexpr std::array<char32_t, 256> kLetters = [] {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) letters[byte] = stands_for_itself(byte) ? byte : next++;
  return letters;
}();

constexpr size_t kAlphabetEnd = 0x144;
constexpr std::array<int16_t, kAlphabetEnd> kBytes = [] {
  std::array<int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) bytes[kLetters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

// Pairs that wait to be joined, by rank and then by place. Most pairs that a join makes rank behind all that wait, so
// they are only put in order when those are done: `ordered` from `next_` on is ascending, `early` is a heap of what
// arrived since and comes before its end, `late` is what comes after. Each is 64 bits, the rank above the place.
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

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

std::string shown(std::string_view token) { return shortened(Json(token)); }

std::unordered_map<std::string, int32_t> parse_vocabulary(const JsonObject& model) {
  const JsonObject json = model.object("vocab");
  std::unordered_map<std::string, int32_t> vocabulary;
  std::unordered_map<int32_t, std::string_view> owners;
  vocabulary.reserve(json.value().size());
  owners.reserve(json.value().size());
  for (const auto& [token, value] : json.value().items()) {
    const auto id = static_cast<int32_t>(json.integer(token, 0, kMaxTokenId));
    if (const auto [owner, fresh] = owners.emplace(id, token); !fresh) {
      json.fail(token, fmt::format("an id of its own; token {} has it too", shown(owner->second)));
    }
    vocabulary.emplace(token, id);
  }
  if (vocabulary.empty()) model.fail("vocab", "at least one token");
  return vocabulary;
}

// The two sides of a merge, which older files write as "left right" and newer ones as ["left", "right"].
std::pair<std::string_view, std::string_view> merge_sides(const Json& entry, const JsonObject& model) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return {entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>()};
  }
  if (entry.is_string()) {
    const std::string_view text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  model.fail("merges", fmt::format("\"left right\" or [\"left\", \"right\"] instead of {}", shortened(entry)));
}

MergeTable parse_merges(const JsonObject& model, const std::unordered_map<std::string, int32_t>& vocabulary) {
  const Json& list = model.at("merges");
  if (!list.is_array() || list.size() > std::numeric_limits<uint32_t>::max()) model.fail("merges", "a list of pairs");
  MergeTable merges(list.size());
  uint32_t rank = 0;
  for (const Json& entry : list) {
    // A line that merges.txt begins with, carried along by some converters.
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto id_of = [&](std::string token) {
      const auto found = vocabulary.find(token);
      if (found == vocabulary.end()) {
        model.fail("merges", fmt::format("tokens of the vocabulary; merge {} needs {}", rank, shown(token)));
      }
      return found->second;
    };
    const auto [left, right] = merge_sides(entry, model);
    const int32_t left_id = id_of(std::string(left)), right_id = id_of(std::string(right));
    merges.insert(left_id, right_id, {rank, id_of(std::string(left) + std::string(right))});
    ++rank;
  }
  return merges;
}

// UserError for what would make words other than by merging bytes.
void refuse_other_models(const JsonObject& model) {
  if (model.string("type", "BPE") != "BPE") model.fail("type", "\"BPE\"");
  model.number("dropout", 0, 0, 0);
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string(affix, "").empty()) model.fail(affix, "null: tokens are made of bytes");
  }
}

}  // namespace

char32_t byte_letter(unsigned char byte) { return kLetters[byte]; }

std::optional<std::string> bytes_of_letters(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const CodePoint letter = decode_utf8(text, at);
    if (letter.value >= kAlphabetEnd || kBytes[letter.value] < 0) return {};
    bytes.push_back(static_cast<char>(kBytes[letter.value]));
    at += letter.bytes;
  }
  return bytes;
}

MergeTable::MergeTable(size_t capacity) : slots_(std::bit_ceil(2 * capacity + 1)), capacity_(capacity) {}

size_t MergeTable::slot_of(uint64_t pair) const {
  const uint64_t mixed = pair * 0x9e3779b97f4a7c15;  // Fibonacci hashing: the upper bits are the good ones
  const size_t last = slots_.size() - 1;
  size_t slot = static_cast<size_t>(mixed >> 32) & last;
  while (slots_[slot].pair != pair && slots_[slot].pair != kFree) slot = (slot + 1) & last;
  return slot;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.pair == kFree) check(++used_ <= capacity_, "more than {} merges", capacity_);
  slot = {pair_key(left, right), merge};
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.pair == kFree ? nullptr : &slot.merge;
}

BytePairModel BytePairModel::parse(const JsonObject& json) {
  refuse_other_models(json);
  auto vocabulary = parse_vocabulary(json);
  auto merges = parse_merges(json, vocabulary);
  BytePairModel model(std::move(vocabulary), std::move(merges));
  model.whole_words_ = json.boolean("ignore_merges", false);
  model.fuse_unknown_ = json.boolean("fuse_unk", false);

  const auto id_of = [&](const std::string& token) {
    const auto found = model.vocabulary_.find(token);
    return found == model.vocabulary_.end() ? kNone : found->second;
  };
  const bool byte_fallback = json.boolean("byte_fallback", false);
  model.unknown_ = json.has("unk_token") ? id_of(json.string("unk_token")) : kNone;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_utf8(kLetters[byte], letter);
    model.byte_ids_[byte] = id_of(letter);
    if (model.byte_ids_[byte] != kNone) continue;
    if (json.has("unk_token") && model.unknown_ == kNone) json.fail("unk_token", "a token of the vocabulary");
    const auto has_fallback = [&](char c) {
      return id_of(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c))) != kNone;
    };
    if (byte_fallback && std::all_of(letter.begin(), letter.end(), has_fallback)) {
      json.fail("byte_fallback", fmt::format("false, or a token for each byte; {} is missing", shown(letter)));
    }
  }
  return model;
}

void BytePairModel::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (whole_words_) {
    scratch.letters.clear();
    for (const char byte : word) append_utf8(kLetters[static_cast<unsigned char>(byte)], scratch.letters);
    if (const auto found = vocabulary_.find(scratch.letters); found != vocabulary_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  start_word(word, scratch);
  join_pairs(scratch);
  for (const Scratch::Symbol& symbol : scratch.symbols) {
    if (symbol.id != kMerged) ids.push_back(symbol.id);
  }
}

// One symbol a byte; bytes without a token become unknowns or nothing.
void BytePairModel::start_word(std::string_view word, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  bool after_unknown = false;
  for (const char byte : word) {
    int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    const bool is_unknown = id == kNone;
    if (is_unknown) {
      if (unknown_ == kNone || (after_unknown && fuse_unknown_)) continue;
      id = unknown_;
    }
    after_unknown = is_unknown;
    const auto place = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, place - 1, place + 1});
  }
  if (!symbols.empty()) symbols.back().right = -1;
}

// Joins the pair of lowest rank, the leftmost of equals, until none is left.
void BytePairModel::join_pairs(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
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
}

}  // namespace snug
