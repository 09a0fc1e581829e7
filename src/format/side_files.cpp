#include "format/side_files.h"

#include <fmt/format.h>

#include "base/file.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

void add_files(const fs::path& directory, std::initializer_list<const char*> names, std::vector<std::string>& found) {
  for (const char* name : names)
    if (is_file(directory / name)) found.emplace_back(name);
}

}  // namespace

std::vector<std::string> tokenizer_files(const fs::path& directory) {
  std::vector<std::string> found;
  add_files(directory,
            {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
             "merges.txt", "tokenizer.model"},
            found);
  return found;
}

std::vector<std::string> side_files(const fs::path& directory) {
  std::vector<std::string> found = tokenizer_files(directory);
  add_files(directory,
            {"config.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
             "preprocessor_config.json", "processor_config.json", "LICENSE"},
            found);
  if (fs::is_directory(directory / kAdditionalTemplates)) {
    for (const auto& entry : fs::directory_iterator(directory / kAdditionalTemplates))
      if (entry.is_regular_file())
        found.push_back(fmt::format("{}/{}", kAdditionalTemplates, entry.path().filename().string()));
  }
  return found;
}

}  // namespace snug
