#include "format/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr size_t kMaxTextBytes = (size_t{1} << 31) - 1;

}  // namespace

std::unique_ptr<BytePairModel::Scratch> Tokenizer::ScratchPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<BytePairModel::Scratch>();
  auto scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

void Tokenizer::ScratchPool::give(std::unique_ptr<BytePairModel::Scratch> scratch) {
  scratch->shrink();
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

Tokenizer::Tokenizer(BytePairModel model, Normalizer normalizer, PreTokenizer pre_tokenizer, TokenDecoder decoder)
    : model_(std::move(model)),
      normalizer_(std::move(normalizer)),
      pre_tokenizer_(std::move(pre_tokenizer)),
      decoder_(std::move(decoder)) {
  for (const auto& [text, id] : model_.vocabulary()) entries_[id] = {text, decoder_.bytes(text, /*first=*/false)};
}

// Encodes a stretch between two added tokens, before it is normalised.
void Tokenizer::encode_stretch(std::string_view text, Before before, bool parse_special,
                               BytePairModel::Scratch& scratch, std::vector<int32_t>& ids) const {
  bool loses_start = false;
  const std::string changed =
      normalizer_.changes_nothing() ? std::string() : normalizer_.apply(text, before, &loses_start);
  // The prefix of the first stretch alone stands before a text's first character, not before another one.
  if (loses_start && before == Before::Nothing) before = Before::Token;
  const std::string_view normalized = normalizer_.changes_nothing() ? text : std::string_view(changed);
  const PreTokenizer::Visit visit = [&](std::string_view word) { model_.encode_word(word, scratch, ids); };
  if (found_after_.empty()) return pre_tokenizer_.each_word(normalized, before, visit);
  for (const TextPart& part : found_after_.split(normalized, parse_special)) {
    if (part.token) {
      ids.push_back(*part.token);
      before = Before::Token;
    } else {
      pre_tokenizer_.each_word(part.text, before, visit);
    }
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  Before before = Before::Nothing;
  return encode_next(text, before, parse_special);
}

std::vector<int32_t> Tokenizer::encode_next(std::string_view text, Before& before, bool parse_special) const {
  if (text.size() > kMaxTextBytes) {
    user_error("text to encode: found {} bytes, expected at most {}; cut it into samples", text.size(), kMaxTextBytes);
  }
  if (const auto offset = find_invalid_utf8(text)) {
    user_error("text to encode: found byte 0x{:02x} at offset {}, which is not UTF-8",
               static_cast<unsigned char>(text[*offset]), *offset);
  }
  auto scratch = pool_->take();
  std::vector<int32_t> ids;
  for (const TextPart& part : found_before_.split(text, parse_special)) {
    if (part.token) {
      ids.push_back(*part.token);
    } else {
      encode_stretch(part.text, before, parse_special, *scratch, ids);
    }
    before = part.token ? Before::Token : Before::Text;
  }
  pool_->give(std::move(scratch));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  TokenStream stream(*this, skip_special);
  std::string bytes;
  for (const int32_t id : ids) bytes += stream.next(id);
  return bytes;
}

std::string TokenStream::next(int32_t id) {
  const auto found = tokenizer_->entries_.find(id);
  if (found == tokenizer_->entries_.end() || (skip_special_ && found->second.special)) return "";
  const TokenDecoder& decoder = tokenizer_->decoder_;
  if (!start_.at_first_token()) return std::string(start_.next(decoder, found->second.bytes));
  const std::string bytes = decoder.bytes(found->second.text, /*first=*/true);
  return std::string(start_.next(decoder, bytes));
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const std::string key(token);
  if (const auto found = added_ids_.find(key); found != added_ids_.end()) return found->second;
  const auto found = model_.vocabulary().find(key);
  if (found == model_.vocabulary().end()) return {};
  return found->second;
}

std::optional<std::string> Tokenizer::token(int32_t id) const {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return {};
  return found->second.text;
}

int32_t Tokenizer::next_id() const {
  int32_t next = 0;
  for (const auto& [id, entry] : entries_) next = std::max(next, id + 1);
  return next;
}

}  // namespace snug
