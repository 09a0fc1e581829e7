// Ranks whose passes are unequal: collectives are the same for all of them, whatever their data, so that nobody waits
// for ever, and results do not depend on who came first.
#include <cmath>
#include <numeric>

#include "cli_fixture.h"
#include "doc_tables.h"

namespace snug {
namespace {

constexpr int kSamples = 81, kRanks = 4, kPasses = 2, kEpochs = 99, kSteps = 1003;

// Samples are taken in order, by each rank in turn. In step n of the first epoch rank n % 5 has one loss token a
// sample, the others as many as there are tokens. The last step has three blocks: one rank has none, nor has any a
// second pass.
bool is_all_loss(int sample) {
  const int rank = sample % kRanks, step = sample / (kRanks * kPasses);
  return rank != step % 5;
}

void write_samples(const fs::path& path) {
  std::ofstream out(path);
  for (int s = 0; s < kSamples; s++) {
    std::vector<int> ids, labels;
    const int length = 6 + s * 7 % 10;
    for (int i = 0; i < length; i++) {
      ids.push_back((s * 131 + i * 17) % 990 + 3);
      labels.push_back(is_all_loss(s) || i + 1 == length ? ids.back() : -100);
    }
    out << nlohmann::json{{"input_ids", ids}, {"labels", labels}} << "\n";
  }
}

TEST_F(Cli, RanksOfUnequalWorkGoOnForAThousandSteps) {
  write_samples(at("samples.jsonl"));
  auto train = [&](const std::string& out, int zero) {
    const Outcome outcome =
        run(words_of(fmt::format("train --model {} --data samples.jsonl --sequence-length 16 --packing false --shuffle "
                                 "false --batch-size {} --gradient-accumulation-steps {} --epochs {} --ranks {} "
                                 "--threads 1 --compute fp32 --zero {} --out {}",
                                 (kModels / "llama").string(), kRanks * kPasses, kPasses, kEpochs, kRanks, zero, out)));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return losses(out);
  };
  const std::vector<double> first = train("first", 3);
  ASSERT_EQ(first.size(), size_t{kSteps});
  for (const double loss : first) EXPECT_TRUE(std::isfinite(loss) && loss > 0);
  const auto mean = [](auto begin, auto end) {
    return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
  };
  constexpr int kOfAnEpoch = 10;
  EXPECT_LT(mean(first.end() - kOfAnEpoch, first.end()), 0.95 * mean(first.begin(), first.begin() + kOfAnEpoch));
  EXPECT_EQ(train("again", 3), first);
  EXPECT_EQ(train("other", 1), first);
}

}  // namespace
}  // namespace snug
