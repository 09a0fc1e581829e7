// What doctor's table says stands under what it is of.
#include "cli/doctor.h"

#include <gmock/gmock.h>

#include "api/target.h"

namespace snug {
namespace {

AttentionRates attention(int64_t head_dim, RateCurve flops) { return {DType::BF16, false, head_dim, std::move(flops)}; }

// Threads and cards are measured with documents of other lengths.
TEST(Doctor, AttentionIsShownByTheLengthItWasMeasuredAt) {
  Machine machine = rough_machine();
  machine.cards = rough_cards("H100", 90, 1);
  machine.teams.resize(1);
  machine.teams[0].attention = {attention(64, {{256, 1024}, {1e9, 3e9}}), attention(128, {{256, 1024}, {1e9, 4e9}})};
  machine.cards->rates.attention = {attention(64, {{2048, 8192}, {1e9, 5e12}}),
                                    attention(128, {{2048, 8192}, {1e9, 6e12}})};
  const std::string text = machine_text(machine);
  EXPECT_THAT(text,
              testing::ContainsRegex("attention, bf16, 8192  +5000 GFLOP/s +documents of 8192 tokens, heads of 64"));
  EXPECT_THAT(text, testing::ContainsRegex("attention, bf16, 1024  +3 GFLOP/s +documents of 1024 tokens, heads of 64"));
}

#ifndef SNUG_CUDA
TEST(Doctor, SaysSoWhereGpusAreAndTheBuildCannotUseThem) {
  EXPECT_THAT(unused_cards({"/no such driver", SNUG_FIXTURES "/configs/llama-3-8b/config.json"}),
              testing::HasSubstr("on the CPU alone"));
  EXPECT_EQ(unused_cards({"/no such driver"}), "");
}
#endif

TEST(Doctor, NamesTheFirstGpuThatIsUnlikeTheOthers) {
  const auto cards = [](std::initializer_list<std::string> names) {
    std::vector<Card> all;
    for (const std::string& name : names) all.push_back({.name = name, .bus = {}, .condition = {}});
    return all;
  };
  EXPECT_EQ(unlike_cards(cards({})), "");
  EXPECT_EQ(unlike_cards(cards({"A", "A"})), "");
  const std::string said = unlike_cards(cards({"A", "A", "B", "A"}));
  for (const char* part : {"the first 2 of 4", "number 2 is 'B', the first 'A'", "CUDA_VISIBLE_DEVICES"})
    EXPECT_THAT(said, testing::HasSubstr(part));
}

TEST(Doctor, SaysWhyACardCannotRunThisBuild) {
  const auto said = [](int capability, std::string_view code) {
    return unusable_card({.name = "A card", .capability = capability, .bus = {}, .condition = {}}, code);
  };
  EXPECT_EQ(said(90, "80,90a"), "");
  EXPECT_THAT(said(75, "80,90a"), testing::HasSubstr("compute capability 7.5, and snug's kernels need 8.0"));
  EXPECT_THAT(said(100, "80,90a"),
              testing::HasSubstr("code for 80,90a alone: build it with -DSNUG_CUDA_ARCHITECTURES=100"));
}

}  // namespace
}  // namespace snug
