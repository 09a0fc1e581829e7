#include "format/char_set.h"

#include <algorithm>

namespace snug {

void CharSet::finish() {
  for (const Part& part : parts_) categories_ |= part.all_but ? ~part.categories : part.categories;
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<std::pair<char32_t, char32_t>> apart;
  for (const auto& range : ranges_) {
    if (!apart.empty() && range.first <= apart.back().second) {
      apart.back().second = std::max(apart.back().second, range.second);
    } else {
      apart.push_back(range);
    }
  }
  ranges_ = std::move(apart);
  for (char32_t c = 0; c < 0x80; ++c) {
    if (contains(c)) ascii_[c / 64] |= uint64_t{1} << c % 64;
  }
}

bool CharSet::contains(char32_t code_point) const { return contains(code_point, code_point_properties(code_point)); }

bool CharSet::contains(char32_t code_point, uint8_t properties) const {
  if (categories_ >> (properties & 31) & 1) return !negated_;
  const auto above = std::upper_bound(ranges_.begin(), ranges_.end(), code_point,
                                      [](char32_t c, const auto& range) { return c < range.first; });
  return (above != ranges_.begin() && code_point <= std::prev(above)->second) != negated_;
}

size_t CharSet::step_beyond_ascii(std::string_view text, size_t at) const {
  const CodePoint point = decode_utf8(text, at);
  return contains(point.value, code_point_properties(point.value)) ? point.bytes : 0;
}

}  // namespace snug
