// The objective of tokens of which a teacher has said what it expects: distill.
#pragma once

#include "train/step_objective.h"

namespace snug {

// Rows weigh what the data says, so it only sums what the head has found. Evaluation takes all that is evaluated for
// one step.
class DistillObjective : public StepObjective {
 public:
  using StepObjective::StepObjective;

  void begin() override;
  double loss() const override;
  // Returns "kl", the mean divergence of a token from the teacher, and "agreement", the share of tokens of which both
  // expect the same most.
  NamedNumbers metrics() const override;

 private:
  std::vector<Weight> judge(std::span<const Scored> documents) override;

  double loss_ = 0, divergence_ = 0, agreements_ = 0;  // sums
  int64_t tokens_ = 0;
};

}  // namespace snug
