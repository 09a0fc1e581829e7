// What is measured is a profile that can be written and read, with every rate there.
#include "measure/measure.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

TEST(Measure, ATeamsRatesMakeAProfile) {
  Machine machine = rough_machine();
  machine.product_sizes = {16, 32};
  machine.teams = {measure_team(1, machine.product_sizes)};
  const TeamRates& team = machine.teams[0];
  EXPECT_EQ(team.products.size(), 10u);  // two dtypes of three layouts, two of them with an addend too
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
