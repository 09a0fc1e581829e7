#include "base/fields.h"

#include <algorithm>

#include "base/hash.h"

namespace snug {
namespace {

const Field* find(const Fields& fields, const Field& other) {
  const auto found = std::ranges::find_if(
      fields, [&](const Field& field) { return field.group == other.group && field.name == other.name; });
  return found == fields.end() ? nullptr : &*found;
}

bool is_in(const std::vector<std::string_view>& groups, const Field& field) {
  return std::ranges::find(groups, field.group) != groups.end();
}

}  // namespace

uint64_t hash_of_fields(const Fields& fields, const std::vector<std::string_view>& groups) {
  std::string text;
  for (const Field& field : fields)
    if (!field.is_default() && (groups.empty() || is_in(groups, field)))
      text += fmt::format("{}.{}={}\n", field.group, field.name, field.value);
  return hash_of(text);
}

std::vector<std::string> differences(const Fields& found, const Fields& expected,
                                     const std::vector<std::string_view>& groups) {
  std::vector<std::string> words;
  const auto add = [&](const Field& field, const std::string& value, const std::string& other) {
    const auto word = [&](const std::string& text) {
      const auto said = field.words.find(text);
      return said != field.words.end() ? said->second : text.empty() ? "nothing" : text;
    };
    if (value != other) words.push_back(fmt::format("{}: found {}, expected {}", field.name, word(value), word(other)));
  };
  for (const Field& field : found) {
    if (!is_in(groups, field)) continue;
    const Field* const other = find(expected, field);
    add(field, field.value, other ? other->value : field.default_value);
  }
  for (const Field& field : expected)
    if (is_in(groups, field) && !find(found, field)) add(field, "", field.value);
  return words;
}

}  // namespace snug
