#include "train/kto_objective.h"

#include <algorithm>

namespace snug {

void KtoObjective::begin() {
  replies_.clear();
  others_sum_ = 0;
  others_ = 0;
}

void KtoObjective::judge_others(std::span<const Scored> documents) {
  for (const Scored& document : documents) {
    if (document.reply.tokens == 0) continue;
    others_sum_ += document.reply.log_probability - document.reply.reference;
    others_++;
  }
}

double KtoObjective::divergence() const {
  return others_ == 0 ? 0 : std::max(0.0, others_sum_ / static_cast<double>(others_));
}

std::vector<StepObjective::Weight> KtoObjective::judge(std::span<const Scored> documents) {
  const double distance = divergence();
  std::vector<Weight> weights;
  for (const Scored& document : documents) {
    const bool desirable = dataset_.value(document.span.sample) > 0;
    const ReplyLoss loss = kto_loss(options_, document.reply, desirable, distance);
    replies_.push_back({document.reply, desirable, loss.loss});
    weights.push_back({loss.loss, -loss.by_reply, 0});
  }
  return weights;
}

double KtoObjective::loss() const {
  double sum = 0;
  for (const Judged& judged : replies_) sum += judged.loss;
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
