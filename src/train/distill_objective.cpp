#include "train/distill_objective.h"

namespace snug {

void DistillObjective::begin() {
  loss_ = divergence_ = agreements_ = 0;
  tokens_ = 0;
}

std::vector<StepObjective::Weight> DistillObjective::judge(std::span<const Scored> documents) {
  for (const Scored& document : documents) {
    loss_ -= document.reply.log_probability;  // the sum of its rows' losses, with its sign changed
    divergence_ += document.divergence;
    agreements_ += document.agreements;
    tokens_ += document.reply.tokens;
  }
  return {};
}

double DistillObjective::loss() const { return loss_ / static_cast<double>(tokens_); }

NamedNumbers DistillObjective::metrics() const {
  const auto tokens = static_cast<double>(tokens_);
  return {{"kl", divergence_ / tokens}, {"agreement", agreements_ / tokens}};
}

}  // namespace snug
