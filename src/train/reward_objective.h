// The objective of pairs whose replies have scores: reward.
#pragma once

#include "train/step_objective.h"

namespace snug {

class RewardObjective : public StepObjective {
 public:
  using StepObjective::StepObjective;

  void begin() override { pairs_.clear(); }
  double loss() const override;
  NamedNumbers metrics() const override;
  std::vector<std::array<double, 2>> scores() const override;

 private:
  struct Pair {
    uint32_t sample = 0;
    double chosen = 0, rejected = 0;  // scores
    double loss = 0;
  };

  std::vector<Weight> judge(std::span<const Scored> documents) override;

  std::vector<Pair> pairs_;
};

}  // namespace snug
