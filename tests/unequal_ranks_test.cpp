// Ranks whose passes are unequal: collectives are the same for all of them, whatever their data, so that nobody waits
// for ever, and results do not depend on who came first.
#include <cmath>

#include "cli_fixture.h"
#include "doc_tables.h"

namespace snug {
namespace {

constexpr int kSamples = 80, kRanks = 4, kPasses = 2, kSteps = 1000;

// Samples are taken in order, by each rank in turn. In step n rank n % 5 has no loss token, in none of its passes; in
// step 5 nobody has any, in steps 4 and 9 everybody has.
bool has_loss(int sample) {
  const int rank = sample % kRanks, step = sample / (kRanks * kPasses);
  return rank != step % 5 && step != 5;
}

void write_samples(const fs::path& path) {
  std::ofstream out(path);
  for (int s = 0; s < kSamples; s++) {
    std::vector<int> ids, labels;
    for (int i = 0; i < 6 + s * 7 % 10; i++) {
      ids.push_back((s * 131 + i * 17) % 990 + 3);
      labels.push_back(has_loss(s) ? ids.back() : -100);
    }
    out << nlohmann::json{{"input_ids", ids}, {"labels", labels}} << "\n";
  }
}

TEST_F(Cli, RanksWithoutLossTokensInSomeStepsGoOnForAThousand) {
  write_samples(at("samples.jsonl"));
  auto train = [&](const std::string& out, int zero) {
    const Outcome outcome =
        run(words_of(fmt::format("train --model {} --data samples.jsonl --sequence-length 16 --packing false --shuffle "
                                 "false --batch-size {} --gradient-accumulation-steps {} --max-steps {} --ranks {} "
                                 "--threads 1 --compute fp32 --zero {} --out {}",
                                 (kModels / "llama").string(), kRanks * kPasses, kPasses, kSteps, kRanks, zero, out)));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return losses(out);
  };
  const std::vector<double> first = train("first", 3);
  ASSERT_EQ(first.size(), size_t{kSteps});
  for (size_t step = 0; step < first.size(); step++) {
    EXPECT_TRUE(std::isfinite(first[step]));
    EXPECT_EQ(first[step] == 0, step % 10 == 5) << step;
  }
  EXPECT_LT(first.back(), 0.8 * first.front());
  EXPECT_EQ(train("again", 3), first);
  EXPECT_EQ(train("other", 1), first);
}

}  // namespace
}  // namespace snug
