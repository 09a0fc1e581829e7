// docs/scenarios.md: every row's plan takes what the row says, to the last digit, and has the arrangement it names. A
// change that means to alter them rewrites them (run with --gtest_also_run_disabled_tests --gtest_filter=*Rewrite*),
// and the text around them is read again.
#include <fstream>

#include "cli_fixture.h"
#include "doc_tables.h"

namespace snug {
namespace {

struct Scenarios : Cli {
  static fs::path document() { return fs::path(SNUG_DOCS) / "scenarios.md"; }

  // The page with its rows as plans have them; what the arithmetic of a row is stays.
  std::vector<std::string> planned(const std::vector<std::string>& page) {
    const std::string assigned = "    SHARDED=\"", command = "    snug plan ";
    std::string sharded, base;
    std::vector<std::string> lines;
    for (const std::string& line : page) {
      if (line.starts_with(assigned)) sharded = line.substr(assigned.size(), line.size() - assigned.size() - 1);
      if (line.starts_with(command)) base = line.substr(command.size());
      lines.push_back(line.starts_with("| `") ? row(line, sharded, base) : line);
    }
    return lines;
  }

 private:
  std::string row(const std::string& line, const std::string& sharded, const std::string& base) {
    const Words cells = cells_of(line);
    EXPECT_EQ(cells.size(), 5u) << line;
    std::string options = cells.at(0).substr(1, cells[0].size() - 2);
    if (const size_t at = options.find("$SHARDED"); at != options.npos) options.replace(at, 8, sharded);
    const auto plan = nlohmann::json::parse(run(plan_words(base + " " + options)).out);
    std::string words = plan["arrangement"]["words"];
    if (const size_t at = words.find(" ranks, "); at != words.npos) words.erase(0, at + 8);
    return fmt::format("| {} | {} | {} | {} | {} |", cells[0], gib(plan["device_bytes"]), gib(plan["host_bytes"]),
                       cells[3], words);
  }
};

TEST_F(Scenarios, TakeWhatTheirPageSays) {
  const std::vector<std::string> page = lines_of(text_of(document())), expected = planned(page);
  EXPECT_EQ(std::ranges::count_if(page, [](const std::string& line) { return line.starts_with("| `"); }), 38);
  for (size_t i = 0; i < page.size(); i++) EXPECT_EQ(page[i], expected[i]);
}

TEST_F(Scenarios, DISABLED_Rewrite) {
  const std::vector<std::string> lines = planned(lines_of(text_of(document())));
  std::ofstream(document()) << fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace
}  // namespace snug
