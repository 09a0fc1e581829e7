// What is measured is a profile that can be written and read, with every rate there.
#include "measure/measure.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

TEST(Measure, ALinkTakesTheMostBlocksOfThreadsThatAreWorthIt) {
  const auto blocks = [](std::vector<CardLink> links) { return worthwhile(links).blocks; };
  EXPECT_EQ(blocks({{0, 80, 4}, {0, 160, 8}, {0, 256, 16}, {0, 280, 32}}), 16);  // 20, 20, 16 and 8.75 a block
  EXPECT_EQ(blocks({{0, 80, 4}, {0, 127, 8}, {0, 200, 16}}), 4);                 // 20, 15.9, 12.5
  EXPECT_EQ(blocks({{0, 40, 4}, {0, 100, 8}, {0, 199, 16}}), 16);                // 10, 12.5, 12.4
}

TEST(Measure, ATeamsRatesMakeAProfile) {
  Machine machine = rough_machine();
  machine.product_sizes = {16, 32};
  machine.teams = {measure_team(1, machine.product_sizes)};
  const TeamRates& team = machine.teams[0];
  EXPECT_EQ(team.products.size(), 12u);  // two dtypes of three layouts, with an addend and without
  EXPECT_EQ(team.attention.size(), 8u);
  EXPECT_GT(team.kinds.size(), 30u);
  EXPECT_GT(team.op_seconds, 0);
  EXPECT_LT(team.op_seconds, 0.1);
  const std::string json = write_machine(machine);
  EXPECT_EQ(write_machine(parse_machine(json, "measured")), json);
}

TEST(Measure, ADisksFileIsGoneAfterwards) {
  const TempDirectory directory;
  const Machine::Disk disk = measure_disk(directory.path());
  EXPECT_GT(disk.read, 0);
  EXPECT_GT(disk.write, 0);
  EXPECT_GT(disk.free_bytes, 0u);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_TRUE(fails_with<UserError>([&] { measure_disk(directory.path() / "nowhere"); }, "nowhere"));
}

}  // namespace
}  // namespace snug
