// Says how files of another program, or of another age, spell the names of tensors and modules.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace snug {

// Names differ by what they begin with; a name that begins with none of the prefixes is alike in both.
struct Spelling {
  std::vector<std::pair<std::string_view, std::string_view>> prefixes = {};  // ours, theirs; the first that fits counts

  std::string operator()(std::string_view ours) const;
  // Returns our name for theirs. A name that is spelt as ours stays.
  std::string ours(std::string_view theirs) const;
};

}  // namespace snug
