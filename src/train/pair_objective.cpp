#include "train/pair_objective.h"

#include <algorithm>

namespace snug {

std::vector<StepObjective::Weight> PairObjective::judge(std::span<const Scored> documents) {
  // The step divides by its pairs, the cross-entropy by its chosen replies' tokens.
  const double of_tokens = options_.nll_weight * static_cast<double>(stream_.samples()) /
                           static_cast<double>(std::max<int64_t>(stream_.first_loss_tokens(), 1));
  std::vector<Weight> weights;
  for (size_t d = 0; d + 1 < documents.size(); d += 2) {
    const ScoredReply &chosen = documents[d].reply, &rejected = documents[d + 1].reply;
    const PairLoss loss = pair_loss(options_, chosen, rejected);
    pairs_.push_back({chosen, rejected, loss.loss});
    weights.push_back({loss.loss, of_tokens - loss.by_chosen, of_tokens});
    weights.push_back({0, -loss.by_rejected, 0});
  }
  return weights;
}

double PairObjective::cross_entropy() const {
  double sum = 0, tokens = 0;
  for (const Pair& pair : pairs_) {
    sum -= pair.chosen.log_probability;
    tokens += static_cast<double>(pair.chosen.tokens);
  }
  return sum / tokens;
}

double PairObjective::loss() const {
  double sum = 0;
  for (const Pair& pair : pairs_) sum += pair.loss;
  const double mean = sum / static_cast<double>(pairs_.size());
  return options_.nll_weight > 0 ? mean + options_.nll_weight * cross_entropy() : mean;
}

NamedNumbers PairObjective::metrics() const {
  using Reply = const ScoredReply&;
  const auto mean = [&](const auto& of_pair) {
    double sum = 0;
    for (const Pair& pair : pairs_) sum += of_pair(pair.chosen, pair.rejected);
    return sum / static_cast<double>(pairs_.size());
  };
  const auto reward = [&](Reply reply) { return reward_of(options_, reply); };
  const auto score = [&](Reply reply) { return options_.has_reference() ? reply.log_probability : reply.mean(); };
  NamedNumbers out{{"rewards/chosen", mean([&](Reply c, Reply) { return reward(c); })},
                   {"rewards/rejected", mean([&](Reply, Reply r) { return reward(r); })},
                   {"rewards/accuracies", mean([&](Reply c, Reply r) { return reward(c) > reward(r) ? 1.0 : 0.0; })},
                   {"rewards/margins", mean([&](Reply c, Reply r) { return reward(c) - reward(r); })},
                   {"logps/chosen", mean([&](Reply c, Reply) { return score(c); })},
                   {"logps/rejected", mean([&](Reply, Reply r) { return score(r); })}};
  if (options_.nll_weight > 0) out.emplace_back("nll_loss", cross_entropy());
  if (options_.kind == ObjectiveKind::Orpo) {
    out.emplace_back("log_odds_ratio", mean([&](Reply c, Reply r) { return log_sigmoid(log_odds_ratio(c, r)); }));
    out.emplace_back("log_odds_chosen", mean([&](Reply c, Reply r) { return log_odds_ratio(c, r); }));
  }
  return out;
}

}  // namespace snug
