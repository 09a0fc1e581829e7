// The objectives of pairs: dpo, orpo, simpo.
#pragma once

#include "train/step_objective.h"

namespace snug {

class PairObjective : public StepObjective {
 public:
  using StepObjective::StepObjective;

  void begin() override { pairs_.clear(); }
  double loss() const override;
  NamedNumbers metrics() const override;

 private:
  struct Pair {
    ScoredReply chosen, rejected;
    double loss = 0;
  };

  std::vector<Weight> judge(std::span<const Scored> documents) override;
  double cross_entropy() const;

  std::vector<Pair> pairs_;
};

}  // namespace snug
