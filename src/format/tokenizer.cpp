#include "format/tokenizer.h"

#include "base/error.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr size_t kMaxTextBytes = (size_t{1} << 31) - 1;

}  // namespace

void Tokenizer::encode_words(std::string_view text, BytePairModel::Scratch& scratch, std::vector<int32_t>& ids) const {
  pre_tokenizer_.each_word(text, [&](std::string_view word) { model_.encode_word(word, scratch, ids); });
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  if (text.size() > kMaxTextBytes) {
    user_error("text to encode: found {} bytes, expected at most {}; cut it into samples", text.size(), kMaxTextBytes);
  }
  if (const auto offset = find_invalid_utf8(text)) {
    user_error("text to encode: found byte 0x{:02x} at offset {}, which is not UTF-8",
               static_cast<unsigned char>(text[*offset]), *offset);
  }
  BytePairModel::Scratch scratch;
  std::vector<int32_t> ids;
  for (const TextPart& part : found_before_.split(text, parse_special)) {
    if (part.token) {
      ids.push_back(*part.token);
      continue;
    }
    const std::string composed = composes_nfc_ ? compose_nfc(part.text) : std::string();
    const std::string_view normalized = composes_nfc_ ? std::string_view(composed) : part.text;
    for (const TextPart& inner : found_after_.split(normalized, parse_special)) {
      if (inner.token) {
        ids.push_back(*inner.token);
      } else {
        encode_words(inner.text, scratch, ids);
      }
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const auto found = entries_.find(id);
    if (found != entries_.end() && !(skip_special && found->second.special)) bytes += found->second.bytes;
  }
  return bytes;
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

}  // namespace snug
