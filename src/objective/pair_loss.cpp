#include "objective/pair_loss.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace snug {
namespace {

// A mean log-probability of 0 has infinite odds: it is taken for this one.
constexpr double kSurest = -1e-12;

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
// Returns the derivative of sigmoid().
double slope(double x) { return sigmoid(x) * sigmoid(-x); }

// Returns log(1 - e^p), without the loss of digits near either end.
double log_of_rest(double p) { return p > -std::numbers::ln2 ? std::log(-std::expm1(p)) : std::log1p(-std::exp(p)); }

double distance(const ScoredReply& reply) { return reply.log_probability - reply.reference; }
double mean_distance(const ScoredReply& reply) { return distance(reply) / static_cast<double>(reply.tokens); }

// Returns the loss of a function of the means' difference: `by_mean` is its derivative by the chosen reply's mean.
PairLoss of_means(double loss, double by_mean, const ScoredReply& chosen, const ScoredReply& rejected) {
  return {loss, by_mean / static_cast<double>(chosen.tokens), -by_mean / static_cast<double>(rejected.tokens)};
}

PairLoss dpo_loss(const ObjectiveOptions& options, const ScoredReply& chosen, const ScoredReply& rejected) {
  const double beta = options.beta, e = options.label_smoothing;
  const double a = beta * distance(chosen), b = beta * distance(rejected), x = a - b;
  const auto of_difference = [&](double loss, double by_x) { return PairLoss{loss, beta * by_x, -beta * by_x}; };
  switch (options.preference_loss) {
    case PreferenceLoss::Sigmoid:
      return of_difference(-log_sigmoid(x), -sigmoid(-x));
    case PreferenceLoss::Cdpo:
      return of_difference(-(1 - e) * log_sigmoid(x) - e * log_sigmoid(-x), sigmoid(x) - (1 - e));
    case PreferenceLoss::Robust:
      return of_difference((-(1 - e) * log_sigmoid(x) + e * log_sigmoid(-x)) / (1 - 2 * e),
                           (-(1 - e) * sigmoid(-x) - e * sigmoid(x)) / (1 - 2 * e));
    case PreferenceLoss::Hinge:
      return of_difference(std::max(0.0, 1 - x), x < 1 ? -1 : 0);
    case PreferenceLoss::Ipo: {
      const double u = mean_distance(chosen) - mean_distance(rejected) - 1 / (2 * beta);
      return of_means(u * u, 2 * u, chosen, rejected);
    }
    case PreferenceLoss::SigmoidNorm: {
      const double y = beta * (mean_distance(chosen) - mean_distance(rejected));
      return of_means(-log_sigmoid(y), -beta * sigmoid(-y), chosen, rejected);
    }
    case PreferenceLoss::ApoZero:
      return {1 - sigmoid(a) + sigmoid(b), -beta * slope(a), beta * slope(b)};
    case PreferenceLoss::ApoDown:
      return {sigmoid(a) + 1 - sigmoid(x), beta * (slope(a) - slope(x)), beta * slope(x)};
  }
  internal_error("preference loss {}", static_cast<int>(options.preference_loss));
}

// Returns the mean log-probability of a token of a reply, as its odds take it.
double bounded_mean(const ScoredReply& reply) { return std::min(reply.mean(), kSurest); }

PairLoss orpo_loss(double beta, const ScoredReply& chosen, const ScoredReply& rejected) {
  const double odds = log_odds_ratio(chosen, rejected), by_odds = -beta * sigmoid(-odds);
  const auto by_log_probability = [](const ScoredReply& reply) {
    if (reply.mean() > kSurest) return 0.0;  // where the mean is bounded the loss is constant
    return 1 / (-std::expm1(reply.mean()) * static_cast<double>(reply.tokens));
  };
  return {-beta * log_sigmoid(odds), by_odds * by_log_probability(chosen), -by_odds * by_log_probability(rejected)};
}

}  // namespace

ReplyLoss kto_loss(const ObjectiveOptions& options, const ScoredReply& reply, bool desirable, double divergence) {
  const double sign = desirable ? 1 : -1, weight = desirable ? options.desirable_weight : options.undesirable_weight;
  const double x = sign * options.beta * (distance(reply) - divergence);
  return {weight * (1 - sigmoid(x)), -sign * weight * options.beta * slope(x)};
}

PairLoss score_loss(const ObjectiveOptions& options, double chosen, double rejected, double margin) {
  const double x = chosen - rejected - margin, sum = chosen + rejected, centre = options.center_coefficient;
  return {-log_sigmoid(x) + centre * sum * sum, 2 * centre * sum - sigmoid(-x), 2 * centre * sum + sigmoid(-x)};
}

double log_sigmoid(double x) { return x >= 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x)); }

double log_odds_ratio(const ScoredReply& chosen, const ScoredReply& rejected) {
  const double p = bounded_mean(chosen), q = bounded_mean(rejected);
  return (p - q) - (log_of_rest(p) - log_of_rest(q));
}

double reward_of(const ObjectiveOptions& options, const ScoredReply& reply) {
  return options.beta * (options.has_reference() ? distance(reply) : reply.mean());
}

PairLoss pair_loss(const ObjectiveOptions& options, const ScoredReply& chosen, const ScoredReply& rejected) {
  check(options.pairs() && !options.scores(), "a pair for the objective {}", name(options.kind));
  if (options.kind == ObjectiveKind::Dpo) return dpo_loss(options, chosen, rejected);
  if (options.kind == ObjectiveKind::Orpo) return orpo_loss(options.beta, chosen, rejected);
  const double x = options.beta * (chosen.mean() - rejected.mean()) - options.simpo_gamma;
  return of_means(-log_sigmoid(x), -options.beta * sigmoid(-x), chosen, rejected);
}

}  // namespace snug
