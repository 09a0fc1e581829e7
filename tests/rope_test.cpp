#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"

namespace snug {
namespace {

// transformers' own frequencies, for texts within the original length and beyond it.
TEST(Rope, EveryTypeTurnsAsTransformersDoes) {
  const std::filesystem::path path = std::filesystem::path(SNUG_FIXTURES) / "models/ropes.json";
  const Json cases = parse_json(read_text(path, 1 << 20), path.string());
  ASSERT_EQ(cases.size(), 14);
  for (const Json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>() + " " + one["positions"].dump());
    const Json config{{"rope_parameters", one["rope_parameters"]}};
    const RopeParameters rope = parse_rope(JsonObject(config, "config.json"), {.theta = 1}, 16, 256);
    EXPECT_EQ(name(rope.type), one["rope_parameters"]["rope_type"].get<std::string>());
    const RopeTable table = rope_table(rope, 16, one["positions"]);
    EXPECT_EQ(table.attention_factor, one["factor"].get<float>());
    const auto expected = one["frequencies"].get<std::vector<float>>();
    ASSERT_EQ(table.frequencies.size(), expected.size());
    for (size_t i = 0; i < expected.size(); i++)  // powers of torch and of this library differ in their last bit
      EXPECT_NEAR(table.frequencies[i], expected[i], std::abs(expected[i]) * 0x1p-22) << i;
  }
}

TEST(Rope, LongTextsAreTold) {
  RopeParameters rope{.type = RopeType::LongRope, .original_max_position = 64};
  EXPECT_FALSE(is_long(rope, 64));
  EXPECT_TRUE(is_long(rope, 65));
  rope.type = RopeType::Yarn;
  EXPECT_FALSE(is_long(rope, 65)) << "which turns all texts alike";
}

// Early files of Phi-3 call it "su" or "yarn", and its class has an original length of 4096.
TEST(Rope, Phi3sIsLongRopeUnderEachOfItsNames) {
  for (const char* type : {"su", "yarn", "longrope"}) {
    const Json config{
        {"rope_scaling", {{"type", type}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, 2, 4, 8}}}}};
    const RopeParameters rope =
        parse_rope(JsonObject(config, "config.json"), {.original_max_position = 4096}, 8, 131072);
    EXPECT_EQ(rope.type, RopeType::LongRope);
    EXPECT_EQ(rope.original_max_position, 4096);
    EXPECT_EQ(rope.factor, 32);
  }
}

}  // namespace
}  // namespace snug
