#include "train/reward_objective.h"

#include <algorithm>
#include <limits>

namespace snug {

std::vector<StepObjective::Weight> RewardObjective::judge(std::span<const Scored> documents) {
  // What is summed of a cross-entropy has its sign changed. No op divides derivatives by scores by the step's pairs.
  const auto score = [](const Scored& document) { return -document.reply.log_probability; };
  const auto of_step = static_cast<double>(stream_.samples());
  std::vector<Weight> weights;
  for (size_t d = 0; d + 1 < documents.size(); d += 2) {
    const uint32_t sample = documents[d].span.sample;
    const double chosen = score(documents[d]), rejected = score(documents[d + 1]);
    const PairLoss loss = score_loss(options_, chosen, rejected, static_cast<double>(dataset_.value(sample)));
    pairs_.push_back({sample, chosen, rejected, loss.loss});
    weights.push_back({loss.loss, loss.by_chosen / of_step, 0});
    weights.push_back({0, loss.by_rejected / of_step, 0});
  }
  return weights;
}

double RewardObjective::loss() const {
  double sum = 0;
  for (const Pair& pair : pairs_) sum += pair.loss;
  return sum / static_cast<double>(pairs_.size());
}

NamedNumbers RewardObjective::metrics() const {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto count = static_cast<double>(pairs_.size());
  double right = 0, margin = 0, sum = 0, least = kNone, most = kNone;
  for (const Pair& pair : pairs_) {
    right += pair.chosen > pair.rejected ? 1 : 0;
    margin += pair.chosen - pair.rejected;
    sum += pair.chosen + pair.rejected;
    const auto [low, high] = std::minmax(pair.chosen, pair.rejected);
    if (!(low >= least)) least = low;
    if (!(high <= most)) most = high;
  }
  return {{"accuracy", right / count},
          {"margin", margin / count},
          {"min_reward", least},
          {"mean_reward", sum / (2 * count)},
          {"max_reward", most}};
}

std::vector<std::array<double, 2>> RewardObjective::scores() const {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::array<double, 2>> by_sample(static_cast<size_t>(dataset_.samples()), {kNone, kNone});
  for (const Pair& pair : pairs_) by_sample[pair.sample] = {pair.chosen, pair.rejected};
  return by_sample;
}

}  // namespace snug
