// The objectives of pairs: dpo, orpo, simpo.
#pragma once

#include "train/step_objective.h"

namespace snug {

class PairObjective : public StepObjective {
 public:
  PairObjective(const ObjectiveOptions& options, const Dataset& dataset, const BlockStream& stream,
                References* references)
      : StepObjective(options, dataset, stream, references) {}

  void begin() override { pairs_.clear(); }
  void add(int64_t pass, const TensorView& losses) override;
  void add_others(int64_t, const TensorView&) override {}
  void weigh(int64_t pass, int rank, const TensorView& losses, std::span<float> weights,
             std::span<float> row_losses) override;
  double loss() const override;
  NamedNumbers metrics() const override;

 private:
  struct Pair {
    ScoredReply chosen, rejected;
    PairLoss loss;
  };

  double cross_entropy() const;

  std::vector<Pair> pairs_;
};

}  // namespace snug
