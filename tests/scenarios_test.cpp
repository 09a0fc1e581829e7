// docs/scenarios.md: every row's plan takes what the row says, to the last digit, and has the arrangement it names.
#include <fmt/format.h>

#include <iterator>

#include "cli_fixture.h"

namespace snug {
namespace {

Words words_of(const std::string& text) {
  std::istringstream in(text);
  return Words(std::istream_iterator<std::string>(in), {});
}

// The cells of a table's row, without the spaces around them.
Words cells_of(const std::string& line) {
  Words cells;
  for (size_t begin = 1; begin < line.size();) {
    const size_t end = std::min(line.find('|', begin), line.size());
    const std::string cell = line.substr(begin, end - begin);
    const size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == cell.npos ? "" : cell.substr(first, cell.find_last_not_of(' ') + 1 - first));
    begin = end + 1;
  }
  return cells;
}

std::string gib(const nlohmann::json& bytes) { return fmt::format("{:.2f}", bytes.get<double>() / 0x1p30); }

TEST_F(Cli, ScenariosTakeWhatTheirPageSays) {
  std::istringstream page(text_of(fs::path(SNUG_DOCS) / "scenarios.md"));
  const std::string assigned = "    SHARDED=\"", command = "    snug plan ";
  std::string sharded, base;
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with(assigned)) sharded = line.substr(assigned.size(), line.size() - assigned.size() - 1);
    if (line.starts_with(command)) base = line.substr(command.size());
    if (!line.starts_with("| `")) continue;
    SCOPED_TRACE(line);
    const Words cells = cells_of(line);
    ASSERT_EQ(cells.size(), 5u);
    std::string options = cells[0].substr(1, cells[0].size() - 2);
    if (const size_t at = options.find("$SHARDED"); at != options.npos) options.replace(at, 8, sharded);
    Words words{"plan", "--json"};
    for (std::string word : words_of(base + " " + options)) {
      if (word.starts_with("tests/fixtures/")) word = fs::path(SNUG_FIXTURES) / word.substr(15);
      words.push_back(word);
    }
    const auto plan = nlohmann::json::parse(run(words).out);
    EXPECT_EQ(gib(plan["device_bytes"]), cells[1]);
    EXPECT_EQ(gib(plan["host_bytes"]), cells[2]);
    EXPECT_TRUE(plan["arrangement"]["words"].get<std::string>().ends_with(cells[4])) << plan["arrangement"]["words"];
    rows++;
  }
  EXPECT_EQ(rows, 26);
}

}  // namespace
}  // namespace snug
