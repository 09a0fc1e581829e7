// Tokens are drawn as transformers draws them.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file.h"
#include "train/sampling.h"

namespace snug {
namespace {

const std::vector<float> kLogits{0, 2, 1, 2, -1};

TEST(Sampling, HasTheProbabilitiesOfTransformersProcessors) {
  const auto cases =
      nlohmann::json::parse(read_text(std::filesystem::path(SNUG_FIXTURES) / "sampling.json", 1'000'000));
  ASSERT_EQ(cases.size(), 24u);
  for (const auto& one : cases) {
    const auto& given = one["options"];
    SamplingOptions options;
    options.temperature = given["temperature"];
    options.repetition_penalty = given.value("repetition_penalty", 1.0);
    options.top_k = given.value("top_k", 0);
    options.top_p = given.value("top_p", 1.0);
    options.min_p = given.value("min_p", 0.0);
    Sampler sampler(options);
    const auto logits = one["logits"].get<std::vector<float>>();
    const auto text = one["text"].get<std::vector<int32_t>>();
    const auto expected = one["probabilities"].get<std::vector<double>>();
    const std::span<const double> weights = sampler.weights(logits, text);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < expected.size(); i++) {
      EXPECT_EQ(weights[i] == 0, expected[i] == 0) << given << " token " << i;
      EXPECT_NEAR(weights[i] / total, expected[i], 1e-6) << given << " token " << i;
    }
  }
}

TEST(Sampling, AtTemperatureZeroTheLikeliestIsChosenTheLowestIdAmongEquals) {
  EXPECT_EQ(Sampler({}).choose(kLogits, {}, 0), 1);
  SamplingOptions penalised;
  penalised.repetition_penalty = 2;
  EXPECT_EQ(Sampler(penalised).choose(kLogits, std::vector{1, 1}, 0), 3);
}

TEST(Sampling, OfEquallyLikelyTokensTopPTakesTheLowestIds) {
  SamplingOptions options;
  options.temperature = 1;
  options.top_p = 0.3;
  Sampler sampler(options);
  const std::span<const double> weights = sampler.weights(kLogits, {});
  EXPECT_EQ(std::vector(weights.begin(), weights.end()), (std::vector<double>{0, 1, 0, 0, 0}));
}

TEST(Sampling, DrawsAreThoseOfTheSeedAsOftenAsTheyAreLikely) {
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 3;
  Sampler sampler(options), again(options);
  constexpr int kDraws = 20'000;
  std::vector<int> counts(kLogits.size());
  for (uint64_t draw = 0; draw < kDraws; draw++) {
    const int32_t token = sampler.choose(kLogits, {}, draw);
    ASSERT_EQ(token, again.choose(kLogits, {}, draw));
    counts[static_cast<size_t>(token)]++;
  }
  const double likeliest = 1 / (2 + std::exp(-1));
  EXPECT_EQ(counts[0] + counts[4], 0);
  EXPECT_NEAR(counts[1], kDraws * likeliest, 300);
  EXPECT_NEAR(counts[3], kDraws * likeliest, 300);
}

}  // namespace
}  // namespace snug
