// Computes the losses of replies and their derivatives, in fp64.
#pragma once

#include <cstdint>

#include "objective/objective.h"

namespace snug {

// Holds what is known of a reply: sums over its loss tokens.
struct ScoredReply {
  double log_probability = 0;  // natural
  double reference = 0;        // that of the reference; 0 where there is none
  int64_t tokens = 1;

  double mean() const { return log_probability / static_cast<double>(tokens); }
};

struct PairLoss {
  double loss = 0;
  double by_chosen = 0, by_rejected = 0;  // derivatives by the replies' log-probabilities
};

// Returns the loss of a pair, without the cross-entropy of nll_weight.
PairLoss pair_loss(const ObjectiveOptions& options, const ScoredReply& chosen, const ScoredReply& rejected);

// Returns the loss of reward, and its derivatives by the replies' scores. `margin` is by how much the chosen one's
// should be greater.
PairLoss score_loss(const ObjectiveOptions& options, double chosen, double rejected, double margin);

// Holds the loss of a reply that is judged by itself, and its derivative by the reply's log-probability.
struct ReplyLoss {
  double loss = 0, by_reply = 0;
};

// Returns the loss of kto. `divergence` is the step's estimate of how far the model is from its reference: the mean
// distance of other replies to the step's prompts, at least 0; it counts as a constant.
ReplyLoss kto_loss(const ObjectiveOptions& options, const ScoredReply& reply, bool desirable, double divergence);

// Returns what the objective takes for the reward of a reply: beta times its distance from the reference or, where
// there is none, beta times its mean log-probability.
double reward_of(const ObjectiveOptions& options, const ScoredReply& reply);

// Returns the logarithm of the odds ratio of orpo: log p/(1-p) of the chosen reply less that of the rejected one, where
// log p is the mean log-probability of a token.
double log_odds_ratio(const ScoredReply& chosen, const ScoredReply& rejected);

// Returns log(sigmoid(x)), which is finite for every finite x.
double log_sigmoid(double x);

}  // namespace snug
