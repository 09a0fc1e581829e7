#include "api/job_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "data/data_files.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr uint64_t kMaxJobFile = 1 << 20;
constexpr int64_t kFormat = 1;  // of job files; one without it is read as this

// Refuses a document that begins where the one before it began: the library does not move past a stray comma or
// bracket, and would make documents of it for ever.
class ProgressCheck : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (mark.pos == last_) throw YAML::ParserException(mark, "this belongs to no list and no map");
    last_ = mark.pos;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  int last_ = -1;
};

void require_progress(const std::string& text) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  ProgressCheck check;
  while (parser.HandleNextDocument(check)) {
  }
}

std::string flattened(const YAML::Node& node, const std::string& key, const std::string& path) {
  if (node.IsScalar()) return node.as<std::string>();
  std::vector<std::string> items;
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) items.push_back(item.as<std::string>());
  } else if (node.IsMap() && (key == "columns" || key == "roles" || key.ends_with("_pattern"))) {
    for (const auto& item : node) items.push_back(item.first.as<std::string>() + "=" + item.second.as<std::string>());
  } else {
    user_error("{}, key '{}': expected a value or a list", path, key);
  }
  return join_list(items);
}

void require_format(const YAML::Node& node, const std::string& path) {
  int64_t format = 0;
  if (!node.IsScalar() || !YAML::convert<int64_t>::decode(node, format) || format < 1)
    user_error("{}, key 'format': expected {}, the format of job files", path, kFormat);
  if (format > kFormat)
    user_error("{}, key 'format': found {}, expected {} at most: a newer snug made it", path, format, kFormat);
}

bool is_control(char c) { return (c >= 0 && c < ' ') || c == 0x7f; }

}  // namespace

void refuse_as_job_file(const std::string& path) {
  const std::string several =
      "several data files are " + option_name("data") + " A,B, or " + option_name("data") + " with their directory";
  if (std::filesystem::is_directory(path))
    user_error("command line: found the directory '{}', expected a job file (YAML); data is named by {}: {}", path,
               option_name("data"), several);
  const auto type = find_data_file_type(path);
  if (!type) return;
  // A job may be written in JSON, as an object.
  if (type->kind == FileKind::Json && type->compression == Compression::None && is_file(path) &&
      std::filesystem::file_size(path) <= kMaxJobFile) {
    const std::string text = read_text(path, kMaxJobFile);
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first != text.npos && text[first] == '{') return;
  }
  user_error("command line: found the data file '{}', expected a job file (YAML) or another option: {}", path, several);
}

void read_job_file(const std::string& path, JobConfig& options) {
  refuse_as_job_file(path);
  parse_job(read_text(path, kMaxJobFile), path, options);
}

void parse_job(const std::string& text, const std::string& path, JobConfig& options) {
  if (const std::optional<size_t> at = find_invalid_utf8(text))
    user_error("{}: byte {} belongs to no character of UTF-8, which job files are written in", path, *at);
  const auto control =
      std::ranges::find_if(text, [](char c) { return is_control(c) && c != '\n' && c != '\r' && c != '\t'; });
  if (control != text.end())
    user_error("{}: byte {} is a control character, which no job file has", path, control - text.begin());
  std::vector<YAML::Node> documents;
  try {
    require_progress(text);
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    user_error("{}: not readable as YAML: {}", path, error.what());
  }
  std::erase_if(documents, [](const YAML::Node& document) { return document.IsNull(); });
  if (documents.size() > 1)
    user_error("{}: found {} documents, divided by '---', expected one: a job file is one list of keys and values",
               path, documents.size());
  if (documents.empty()) return;
  const YAML::Node& root = documents[0];
  if (!root.IsMap()) user_error("{}: expected keys and values at the top", path);
  if (const YAML::Node format = root["format"]) require_format(format, path);  // first, as a newer file has other keys
  std::set<std::string> seen;
  for (const auto& item : root) {
    if (!item.first.IsScalar()) user_error("{}: found a list or a map as a key, expected the name of an option", path);
    const auto key = item.first.as<std::string>();
    if (key == "format") continue;
    const OptionSpec& spec = find_option(key, path);
    if (!seen.insert(spec.key).second) user_error("{}: found key '{}' twice, expected it once", path, spec.key);
    if (item.second.IsSequence() && !spec.is_list())
      user_error("{}, key '{}': found a list, expected one value", path, spec.key);
    try {
      if (item.second.IsNull()) continue;
      const std::string value = flattened(item.second, spec.key, path);
      try {
        spec.set(options, value);
      } catch (const UserError& error) {
        user_error("{}, {}", path, error.what());
      }
    } catch (const YAML::Exception&) {
      user_error("{}, key '{}': expected a value or a list of values", path, key);
    }
  }
}

std::string write_job_file(const JobConfig& options) {
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << "format" << YAML::Value << kFormat;
  for (const OptionSpec& spec : option_specs()) {
    const std::string text = spec.get(options);
    if (text.empty()) continue;
    out << YAML::Key << spec.key << YAML::Value;
    if (std::ranges::any_of(text, is_control))
      out << YAML::DoubleQuoted;  // else some of them are written plain, and are read as other values
    out << text;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace snug
