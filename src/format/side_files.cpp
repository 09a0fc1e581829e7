#include "format/side_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "format/json.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

void add_files(const fs::path& directory, std::initializer_list<const char*> names, std::vector<std::string>& found) {
  for (const char* name : names)
    if (is_file(directory / name)) found.emplace_back(name);
}

constexpr std::initializer_list<const char*> kProcessorFiles = {kImageProcessorFile, kProcessorFile,
                                                                kVideoProcessorFile};

// Returns the names of the modules beside a model that its files have programs load (auto_map). What stands before "--"
// names another repository, whose modules are not beside it.
std::set<std::string> own_modules(const fs::path& directory) {
  std::vector<std::string> files;
  add_files(directory, {"config.json", "tokenizer_config.json"}, files);
  add_files(directory, kProcessorFiles, files);
  std::set<std::string> modules;
  const auto add = [&](const Json& reference) {
    if (!reference.is_string()) return;
    const auto text = reference.get<std::string>();
    if (text.find("--") == text.npos) modules.insert(text.substr(0, text.find('.')) + ".py");
  };
  for (const std::string& file : files) {
    if (fs::file_size(directory / file) > kMaxConfigBytes) continue;
    const Json json = Json::parse(read_text(directory / file, kMaxConfigBytes), nullptr, false);
    if (!json.is_object() || !json.contains("auto_map") || !json["auto_map"].is_object()) continue;
    for (const Json& reference : json["auto_map"]) {
      if (reference.is_array())
        std::ranges::for_each(reference, add);
      else
        add(reference);
    }
  }
  return modules;
}

// Adds the Python files of a model that has code of its own: modules that auto_map names import others.
void add_code(const fs::path& directory, std::vector<std::string>& found) {
  if (own_modules(directory).empty()) return;
  const size_t first = found.size();
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file() && entry.path().extension() == ".py" && entry.file_size() <= kMaxCodeBytes)
      found.push_back(entry.path().filename().string());
  std::sort(found.begin() + static_cast<std::ptrdiff_t>(first), found.end());
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
            {"config.json", "generation_config.json", "chat_template.jinja", "chat_template.json", "LICENSE"}, found);
  add_files(directory, kProcessorFiles, found);
  add_code(directory, found);
  if (fs::is_directory(directory / kAdditionalTemplates)) {
    for (const auto& entry : fs::directory_iterator(directory / kAdditionalTemplates))
      if (entry.is_regular_file())
        found.push_back(fmt::format("{}/{}", kAdditionalTemplates, entry.path().filename().string()));
  }
  return found;
}

std::string missing_code(const fs::path& directory) {
  std::set<std::string> missing = own_modules(directory);
  std::vector<std::string> there;
  add_code(directory, there);
  for (const std::string& name : there) missing.erase(name);
  if (missing.empty()) return "";
  const std::string it = missing.size() == 1 ? "it" : "them";
  return fmt::format(
      "auto_map names {}, found no file{} of at most {} MiB for {}: what is written lacks {}, and programs that run a "
      "model's own code cannot load it",
      fmt::join(missing, ", "), missing.size() == 1 ? "" : "s", kMaxCodeBytes >> 20, it, it);
}

}  // namespace snug
