// Reads YAML and JSON into one kind of tree, in which every value is the text that was written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct TreeEntry;

// Holds a value of a file. Maps keep the order in which their keys are written.
struct Tree {
  enum class Kind : uint8_t { Null, Text, List, Map } kind = Kind::Null;
  std::string text;
  std::vector<Tree> items;
  std::vector<TreeEntry> entries;
  int64_t line = 0;  // where it stands, from 1; 0 if it is not known (JSON)

  // Returns the value of a key of a map; null if there is none.
  const Tree* find(std::string_view key) const;
};

struct TreeEntry {
  std::string key;
  Tree value;
};

// Files that are translated are short: longer ones are refused before they are read.
inline constexpr uint64_t kMaxTranslatedFile = 1 << 20;

// Parse one document. Throw UserError with `source` for broken syntax or UTF-8, several documents, a key twice in one
// map, keys that are no texts, aliases, and more than 64 levels or 100,000 values.
Tree read_yaml(const std::string& text, const std::string& source);
Tree read_json(const std::string& text, const std::string& source);

}  // namespace snug
