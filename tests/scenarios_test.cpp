// docs/scenarios.md: every row's plan takes what the row says, to the last digit, and has the arrangement it names.
#include "cli_fixture.h"
#include "doc_tables.h"

namespace snug {
namespace {

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
    const auto plan = nlohmann::json::parse(run(plan_words(base + " " + options)).out);
    EXPECT_EQ(gib(plan["device_bytes"]), cells[1]);
    EXPECT_EQ(gib(plan["host_bytes"]), cells[2]);
    EXPECT_TRUE(plan["arrangement"]["words"].get<std::string>().ends_with(cells[4])) << plan["arrangement"]["words"];
    rows++;
  }
  EXPECT_EQ(rows, 26);
}

}  // namespace
}  // namespace snug
