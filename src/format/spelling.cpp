#include "format/spelling.h"

#include <fmt/format.h>

#include <algorithm>

namespace snug {

std::string Spelling::operator()(std::string_view ours) const {
  for (const auto& [our_prefix, their_prefix] : prefixes)
    if (ours.starts_with(our_prefix)) return fmt::format("{}{}", their_prefix, ours.substr(our_prefix.size()));
  return std::string(ours);
}

std::string Spelling::ours(std::string_view theirs) const {
  const auto is_ours = [&](const auto& pair) { return !pair.first.empty() && theirs.starts_with(pair.first); };
  if (std::ranges::any_of(prefixes, is_ours)) return std::string(theirs);
  for (const auto& [our_prefix, their_prefix] : prefixes)
    if (theirs.starts_with(their_prefix)) return fmt::format("{}{}", our_prefix, theirs.substr(their_prefix.size()));
  return std::string(theirs);
}

}  // namespace snug
