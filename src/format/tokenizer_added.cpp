#include "format/tokenizer_added.h"

#include <algorithm>

#include "base/error.h"
#include "format/json.h"
#include "format/unicode.h"

namespace snug {
namespace {

// Bounds the time that a text of near misses takes.
constexpr size_t kMaxPatternBytes = 1024;

size_t skip_spaces(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Character character = character_at(text, at);
    if (!character.in(kSpace)) break;
    at += character.bytes;
  }
  return at;
}

// Returns where the white space begins that ends at `at`, not before `low`.
size_t skip_spaces_back(std::string_view text, size_t at, size_t low) {
  while (at > low) {
    const size_t before = start_of_last(text, at);
    if (!character_at(text, before).in(kSpace)) break;
    at = before;
  }
  return std::max(at, low);
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  const bool before = begin > 0 && character_at(text, start_of_last(text, begin)).properties & kWord;
  return before || (end < text.size() && character_at(text, end).properties & kWord);
}

}  // namespace

void AddedTokenFinder::insert(const AddedToken& token, const std::string& pattern, std::string_view source) {
  if (pattern.size() > kMaxPatternBytes) {
    user_error("{}, key 'added_tokens': found {} bytes in token {}, expected at most {}", source, pattern.size(),
               token.id, kMaxPatternBytes);
  }
  uint32_t node = 0;
  for (const char byte : pattern) {
    const uint64_t step = uint64_t{node} << 8 | static_cast<unsigned char>(byte);
    const auto [found, fresh] = steps_.emplace(step, nodes_);
    if (fresh) ++nodes_;
    node = found->second;
  }
  if (const auto [found, fresh] = ends_.emplace(node, token); !fresh) {
    user_error("{}, key 'added_tokens': found {} for both token {} and token {}, expected texts of their own", source,
               shortened(pattern), found->second.id, token.id);
  }
  first_bytes_.set(static_cast<unsigned char>(pattern.front()));
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, size_t begin) const {
  Match longest;
  if (!first_bytes_[static_cast<unsigned char>(text[begin])]) return longest;
  uint32_t node = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    const auto step = steps_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[at]));
    if (step == steps_.end()) break;
    node = step->second;
    if (const auto end = ends_.find(node); end != ends_.end()) longest = {at + 1, &end->second};
  }
  return longest;
}

std::vector<TextPart> AddedTokenFinder::split(std::string_view text, bool parse_special) const {
  std::vector<TextPart> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const auto [match_end, token] = longest_at(text, at);
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = match_end;
    at = match_end;  // also past a match that does not count
    if (token->special && !parse_special) continue;
    if (token->single_word && touches_word(text, begin, end)) continue;
    if (token->lstrip) begin = skip_spaces_back(text, begin, done);
    if (token->rstrip) end = skip_spaces(text, end);
    if (begin >= end) continue;  // the token before has taken all of its white space
    if (done < begin) parts.push_back({text.substr(done, begin - done), {}});
    parts.push_back({{}, token->id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), {}});
  return parts;
}

}  // namespace snug
