// Turns the log-probabilities of a step's replies into weights of rows, a loss and metrics: what the host does between
// the two walks of the head.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "objective/pair_loss.h"
#include "tensor/view.h"
#include "train/metrics.h"
#include "train/references.h"

namespace snug {

// Serves one stream of blocks. All ranks see the cross-entropies of all, and so have the same sums, in the order of the
// data, however a step is cut. It refers to the stream, its data set and the references. One thread may use it at a
// time. `losses` are the cross-entropies of every rank's loss rows in a pass of the step at which the stream stands, or
// the scores of its documents where these have scores, [ranks, T] fp32; with a teacher these rows' losses, divergences
// and agreements, [ranks, 3, T].
class StepObjective {
 public:
  StepObjective(const ObjectiveOptions& options, const Dataset& dataset, const BlockStream& stream,
                References* references);
  virtual ~StepObjective() = default;

  // Forgets the replies that were added.
  virtual void begin() = 0;
  // Adds the replies of a pass, of documents that are learnt from; or, where the objective scores others first
  // (scores_others()), those others.
  void add(int64_t pass, const TensorView& losses);
  void add_others(int64_t pass, const TensorView& losses);
  // Makes what is added here be added to another objective of the same data set too, of which this one has a part.
  void belong_to(StepObjective& whole) { whole_ = &whole; }
  // Adds them, and writes for the rows of this rank, [T] fp32, what RowWeights (model/head.h) holds: sums of rows'
  // losses, and their gradients, are those of the whole step once they are divided by its number of samples.
  void weigh(int64_t pass, int rank, const TensorView& losses, std::span<float> weights, std::span<float> row_losses);

  // Return what the replies added have as their mean loss, and as their metrics, means over replies or pairs; NaN for a
  // mean of nothing.
  virtual double loss() const = 0;
  virtual NamedNumbers metrics() const = 0;
  std::vector<std::string> metric_names() const;
  // Returns the scores of the pairs that were added, by sample, where the objective has any; NaN for others.
  virtual std::vector<std::array<double, 2>> scores() const { return {}; }

  // Return which documents are learnt from, and which are scored before, if any.
  Half learnt() const { return scores_others() ? Half::First : Half::Both; }
  bool scores_others() const;
  // Return the parts in which documents go through the model one after the other.
  std::vector<Half> parts() const;

  // Takes the log-probabilities of such a part's replies for the references.
  void take_references(int64_t pass, Half part, const TensorView& losses);
  // Return whether the references of all replies of a pass, or of the data, are known, and of how many samples they
  // are.
  bool knows(int64_t pass) const;
  bool knows_all() const;
  int64_t known() const;

 protected:
  // Holds a document of a pass, and what its reply sums to.
  struct Scored {
    DocumentSpan span;
    ScoredReply reply;
    int rank = 0;
    size_t row = 0;                         // of its rank's: the first of the reply's rows
    double divergence = 0, agreements = 0;  // from a teacher, the sums of its rows
  };
  // Holds what rows of a document's reply weigh, all alike, and its part of the loss: `loss` of the whole reply, and
  // `cross_entropy` times each row's.
  struct Weight {
    double loss = 0, row = 0, cross_entropy = 0;
  };
  // Adds documents that are learnt from, and returns what each weighs.
  virtual std::vector<Weight> judge(std::span<const Scored> documents) = 0;
  // Adds those others.
  virtual void judge_others(std::span<const Scored>) {}
  // Returns the documents of a pass that were scored, in the order of blocks.
  std::vector<Scored> scored(int64_t pass, Half part, const TensorView& losses) const;

  const ObjectiveOptions options_;
  const Dataset& dataset_;
  const BlockStream& stream_;
  References* references_;

 private:
  StepObjective* whole_ = nullptr;
};

// Returns the objective of samples that are pairs, or replies with a judgement. `references` is null for an objective
// without a reference.
std::unique_ptr<StepObjective> make_step_objective(const ObjectiveOptions& options, const Dataset& dataset,
                                                   const BlockStream& stream, References* references);

}  // namespace snug
