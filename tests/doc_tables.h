// Pages of docs/ whose tables are what commands of theirs say: a line that begins a command, then tables with a row for
// each of its endings.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace snug {

inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The cells of a table's row, without the spaces around them.
inline std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t begin = 1; begin < line.size();) {
    const size_t end = std::min(line.find('|', begin), line.size());
    const std::string cell = line.substr(begin, end - begin);
    const size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == cell.npos ? "" : cell.substr(first, cell.find_last_not_of(' ') + 1 - first));
    begin = end + 1;
  }
  return cells;
}

inline std::string gib(const nlohmann::json& bytes) { return fmt::format("{:.2f}", bytes.get<double>() / 0x1p30); }

// The words of a page's command behind `snug plan`, with its fixtures where they are here.
inline std::vector<std::string> plan_words(const std::string& text) {
  std::vector<std::string> words{"plan", "--json"};
  for (std::string word : words_of(text)) {
    if (word.starts_with("tests/fixtures/")) word = std::filesystem::path(SNUG_FIXTURES) / word.substr(15);
    words.push_back(word);
  }
  return words;
}

}  // namespace snug
