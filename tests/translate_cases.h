// Commands and files of other programs, as tests/fixtures/translate has them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "translate/translate.h"

namespace snug {

inline const std::filesystem::path kTranslateCases = std::filesystem::path(SNUG_FIXTURES) / "translate";

inline std::optional<std::string> text_if_there(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Holds a case: its words, and a reader of its files and of those that several cases have in common.
struct TranslateCase {
  std::string name;
  TranslateRequest request;
  FileReader read;

  TranslatedJob translated() const { return translate(request, read); }
  std::filesystem::path file(const std::string& file) const { return kTranslateCases / name / file; }
};

// Reads a case: a word a line; '@ranks N', '@from NAME' and '@pin' are flags of snug's.
inline TranslateCase read_case(const std::string& name) {
  TranslateCase result{name, {}, {}};
  std::istringstream lines(*text_if_there(kTranslateCases / name / "words"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("@ranks "))
      result.request.ranks = std::stoll(line.substr(7));
    else if (line == "@pin")
      result.request.pin = true;
    else if (line.starts_with("@from "))
      result.request.program = std::ranges::find(program_names(), line.substr(6), [](const auto& one) {
                                 return std::string(one.first);
                               })->second;
    else
      result.request.words.push_back(line);
  }
  result.read = [name](const std::string& path) {
    if (auto own = text_if_there(kTranslateCases / name / path)) return own;
    return text_if_there(kTranslateCases / "shared" / path);
  };
  return result;
}

inline const ReportLine& line_of(const TranslatedJob& job, const std::string& option) {
  static const ReportLine kNone;
  const auto found = std::ranges::find(job.report, option, &ReportLine::option);
  EXPECT_NE(found, job.report.end()) << option;
  return found == job.report.end() ? kNone : *found;
}

inline std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kTranslateCases))
    if (std::filesystem::exists(entry.path() / "words")) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace snug
