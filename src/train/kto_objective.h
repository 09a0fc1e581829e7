// The objective of replies that are judged one by one: kto.
#pragma once

#include "train/step_objective.h"

namespace snug {

// How far the model is from its reference is estimated over the whole step: the mean distance of replies to other
// prompts (the second documents of samples), at least 0, and 0 where there are none. Evaluation takes all that is
// evaluated for one step.
class KtoObjective : public StepObjective {
 public:
  using StepObjective::StepObjective;

  void begin() override;
  double loss() const override;
  NamedNumbers metrics() const override;

 private:
  struct Judged {
    ScoredReply reply;
    bool desirable = true;
    double loss = 0;
  };

  std::vector<Weight> judge(std::span<const Scored> documents) override;
  void judge_others(std::span<const Scored> documents) override;
  double divergence() const;

  std::vector<Judged> replies_;
  double others_sum_ = 0;  // of others' distances from the reference
  int64_t others_ = 0;
};

}  // namespace snug
