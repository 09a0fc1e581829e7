// Learning from pairs on a card: what the host weighs between two walks of the head gives the CPU's metrics.
#include <cmath>
#include <numbers>

#include "backend/cuda/cards.h"
#include "preferences_run.h"

namespace snug {
namespace {

struct CudaPreferences : Preferences {
  void SetUp() override {
    if (cuda_cards().empty()) GTEST_SKIP() << "there is no GPU";
    Preferences::SetUp();
  }
  // Each device has a directory, and so references, of its own.
  std::vector<nlohmann::json> metrics_on(const char* device, const Words& more) const {
    run_well(dpo(with({"--overwrite", "--ranks", "1", "--device", device, "--out", device}, more)));
    return metrics(device);
  }
};

void expect_near(const nlohmann::json& found, const nlohmann::json& expected, double tolerance, const std::string& of) {
  ASSERT_EQ(found.size(), expected.size()) << of;
  for (const auto& [key, value] : expected.items()) {
    if (key == "device_bytes" || key == "host_bytes") continue;  // a card needs other scratch
    if (!value.is_number()) {
      EXPECT_EQ(found[key], value) << of << ": " << key;
      continue;
    }
    const double number = value;
    EXPECT_NEAR(found[key], number, tolerance * std::max(1.0, std::abs(number))) << of << ": " << key;
  }
}

TEST_F(CudaPreferences, EveryObjectiveGivesTheMetricsOfTheCpu) {
  const std::vector<Words> objectives{
      {"--objective", "dpo"},
      {"--objective", "dpo", "--preference-loss", "ipo", "--nll-weight", "0.5"},
      {"--objective", "dpo", "--method", "full"},
      {"--objective", "dpo", "--lora-dora", "true"},
      {"--objective", "orpo"},
      {"--objective", "simpo"},
      {"--objective", "kto", "--batch-size", "6"},
      {"--objective", "kto", "--batch-size", "6", "--data", "judged.jsonl"},
  };
  for (const Words& more : objectives) {
    const auto expected = metrics_on("cpu", more), found = metrics_on("cuda", more);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); i++)
      expect_near(found[i], expected[i], 1e-3, ::testing::PrintToString(more));
  }
}

// References are scored by the arrangement that trains, so that an adapter that changes nothing is its reference.
TEST_F(CudaPreferences, ARunBeginsAtLn2ToTheBitAndIsTheSameTwice) {
  for (const char* compute : {"fp32", "bf16"}) {
    const auto first = metrics_on("cuda", {"--compute", compute});
    EXPECT_EQ(first[0]["loss"].get<double>(), std::numbers::ln2) << compute;
    EXPECT_LT(first[3]["loss"], first[0]["loss"]) << compute;
    EXPECT_EQ(metrics_on("cuda", {"--compute", compute}), first) << compute;
  }
}

}  // namespace
}  // namespace snug
