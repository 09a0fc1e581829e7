#include "train/pair_objective.h"

#include <algorithm>

namespace snug {

void PairObjective::add(int64_t pass, const TensorView& losses) {
  const std::vector<Scored> documents = scored(pass, Half::Both, losses);
  for (size_t d = 0; d + 1 < documents.size(); d += 2) {
    const ScoredReply &chosen = documents[d].reply, &rejected = documents[d + 1].reply;
    pairs_.push_back({chosen, rejected, pair_loss(options_, chosen, rejected)});
  }
}

void PairObjective::weigh(int64_t pass, int rank, const TensorView& losses, std::span<float> weights,
                          std::span<float> row_losses) {
  std::ranges::fill(weights, 0.0f);
  std::ranges::fill(row_losses, 0.0f);
  const size_t before = pairs_.size();
  add(pass, losses);
  // The step divides by its pairs, the cross-entropy by its chosen replies' tokens.
  const double of_tokens = options_.nll_weight * static_cast<double>(stream_.samples()) /
                           static_cast<double>(std::max<int64_t>(stream_.first_loss_tokens(), 1));
  const float* const own = losses.as<float>() + static_cast<size_t>(rank) * weights.size();
  const std::vector<Scored> documents = scored(pass, Half::Both, losses);
  for (size_t d = 0; d < documents.size(); d++) {
    if (documents[d].rank != rank) continue;
    const PairLoss& loss = pairs_[before + d / 2].loss;
    const bool chosen = d % 2 == 0;
    size_t row = documents[d].row;
    if (chosen) row_losses[row] = static_cast<float>(loss.loss);
    for (int64_t t = 0; t < documents[d].reply.tokens; t++, row++) {
      weights[row] = static_cast<float>(chosen ? of_tokens - loss.by_chosen : -loss.by_rejected);
      if (chosen) row_losses[row] += static_cast<float>(of_tokens * static_cast<double>(own[row]));
    }
  }
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
  for (const Pair& pair : pairs_) sum += pair.loss.loss;
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
