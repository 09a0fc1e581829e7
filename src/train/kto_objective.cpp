#include "train/kto_objective.h"

#include <algorithm>

namespace snug {

void KtoObjective::begin() {
  replies_.clear();
  others_sum_ = 0;
  others_ = 0;
}

void KtoObjective::add_others(int64_t pass, const TensorView& losses) {
  for (const Scored& document : scored(pass, Half::Second, losses)) {
    others_sum_ += document.reply.log_probability - document.reply.reference;
    others_++;
  }
}

double KtoObjective::divergence() const {
  return others_ == 0 ? 0 : std::max(0.0, others_sum_ / static_cast<double>(others_));
}

void KtoObjective::add(int64_t pass, const TensorView& losses) {
  const double distance = divergence();
  for (const Scored& document : scored(pass, learnt(), losses)) {
    const bool desirable = dataset_.value(document.span.sample) > 0;
    replies_.push_back({document.reply, desirable, kto_loss(options_, document.reply, desirable, distance)});
  }
}

void KtoObjective::weigh(int64_t pass, int rank, const TensorView& losses, std::span<float> weights,
                         std::span<float> row_losses) {
  std::ranges::fill(weights, 0.0f);
  std::ranges::fill(row_losses, 0.0f);
  const size_t before = replies_.size();
  add(pass, losses);
  const std::vector<Scored> documents = scored(pass, learnt(), losses);
  for (size_t d = 0; d < documents.size(); d++) {
    if (documents[d].rank != rank) continue;
    const ReplyLoss& loss = replies_[before + d].loss;
    row_losses[documents[d].row] = static_cast<float>(loss.loss);
    for (int64_t t = 0; t < documents[d].reply.tokens; t++)
      weights[documents[d].row + static_cast<size_t>(t)] = static_cast<float>(-loss.by_reply);
  }
}

double KtoObjective::loss() const {
  double sum = 0;
  for (const Judged& judged : replies_) sum += judged.loss.loss;
  return sum / static_cast<double>(replies_.size());
}

NamedNumbers KtoObjective::metrics() const {
  const auto count = [&](bool desirable) {
    return static_cast<double>(std::ranges::count(replies_, desirable, &Judged::desirable));
  };
  const auto mean = [&](bool desirable, const auto& of_reply) {
    double sum = 0;
    for (const Judged& judged : replies_)
      if (judged.desirable == desirable) sum += of_reply(judged.reply);
    return sum / count(desirable);
  };
  const auto reward = [&](const ScoredReply& reply) { return reward_of(options_, reply); };
  const auto score = [](const ScoredReply& reply) { return reply.log_probability; };
  const double chosen = mean(true, reward), rejected = mean(false, reward);
  return {{"rewards/chosen", chosen},
          {"rewards/rejected", rejected},
          {"rewards/margins", chosen - rejected},
          {"logps/chosen", mean(true, score)},
          {"logps/rejected", mean(false, score)},
          {"kl", divergence()},
          {"count/chosen", count(true)},
          {"count/rejected", count(false)}};
}

}  // namespace snug
