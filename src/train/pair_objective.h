// Turns the log-probabilities of pairs of replies into weights of rows, a loss and metrics: what the host does between
// the two walks of the head.
#pragma once

#include <string>
#include <vector>

#include "objective/pair_loss.h"
#include "tensor/view.h"
#include "train/metrics.h"
#include "train/references.h"

namespace snug {

// Serves one stream of blocks. All ranks see the cross-entropies of all, and so have the same sums, in the order of the
// data, however a step is cut. Refers to the stream, its data set and the references. One thread may use it at a time.
class PairObjective {
 public:
  // `references` is null for an objective without a reference.
  PairObjective(const ObjectiveOptions& options, const Dataset& dataset, const BlockStream& stream,
                References* references);

  // Forgets the pairs that were added.
  void begin() { pairs_.clear(); }
  // Adds the pairs of a pass of the step at which the stream stands. `losses` are the cross-entropies of every rank's
  // loss rows, [ranks, T] fp32.
  void add(int64_t pass, const TensorView& losses);
  // Adds them, and writes for the rows of this rank, [T] fp32, what RowWeights (model/head.h) holds: sums of rows'
  // losses, and their gradients, are those of the whole step once they are divided by its number of pairs.
  void weigh(int64_t pass, int rank, const TensorView& losses, std::span<float> weights, std::span<float> row_losses);
  // Takes the log-probabilities of the pass's replies for the references.
  void take_references(int64_t pass, const TensorView& losses);
  // Returns whether the references of all pairs of a pass are known.
  bool knows(int64_t pass) const;
  // Returns whether those of all pairs of the data are.
  bool knows_all() const;

  // Return what the pairs added have as their mean loss, and as their metrics, means over pairs.
  double loss() const;
  NamedNumbers metrics() const;
  std::vector<std::string> metric_names() const;

 private:
  struct Scored {
    ScoredReply chosen, rejected;
    PairLoss loss;
  };

  template <class Visit>
  void for_each_pair(int64_t pass, const TensorView& losses, const Visit& visit) const;
  const Scored& add(uint32_t sample, ScoredReply chosen, ScoredReply rejected);
  double cross_entropy() const;

  const ObjectiveOptions options_;
  const Dataset& dataset_;
  const BlockStream& stream_;
  References* references_;
  std::vector<Scored> pairs_;
};

}  // namespace snug
