// Losses of pairs: their derivatives, their ends, and what they are by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "objective/pair_loss.h"

namespace snug {
namespace {

std::vector<ObjectiveOptions> all_objectives() {
  std::vector<ObjectiveOptions> all;
  for (int loss = 0; loss < 8; loss++) {
    ObjectiveOptions options{.kind = ObjectiveKind::Dpo, .preference_loss = static_cast<PreferenceLoss>(loss)};
    if (options.preference_loss == PreferenceLoss::Cdpo || options.preference_loss == PreferenceLoss::Robust)
      options.label_smoothing = 0.2;
    all.push_back(options);
  }
  all.push_back({.kind = ObjectiveKind::Orpo});
  all.push_back({.kind = ObjectiveKind::SimPo, .beta = 2});
  return all;
}

// Central differences of fourth order; their error is about 1e-11 here.
double derivative(const std::function<double(double)>& f, double x) {
  constexpr double h = 1e-3;
  return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

TEST(PairLoss, DerivativesAreThoseOfTheLoss) {
  for (const ObjectiveOptions& options : all_objectives()) {
    for (const double chosen : {-40.0, -7.3, -2.5}) {
      const ScoredReply c{chosen, -9.1, 7}, r{-11.2, -10.3, 4};
      const PairLoss loss = pair_loss(options, c, r);
      const auto of_chosen = [&](double x) { return pair_loss(options, {x, c.reference, c.tokens}, r).loss; };
      const auto of_rejected = [&](double x) { return pair_loss(options, c, {x, r.reference, r.tokens}).loss; };
      EXPECT_NEAR(loss.by_chosen, derivative(of_chosen, c.log_probability), 1e-9)
          << name(options.kind) << " " << name(options.preference_loss);
      EXPECT_NEAR(loss.by_rejected, derivative(of_rejected, r.log_probability), 1e-9)
          << name(options.kind) << " " << name(options.preference_loss);
    }
  }
}

TEST(ReplyLoss, OfKtoHasTheDerivativeOfItsLoss) {
  const ObjectiveOptions kto{
      .kind = ObjectiveKind::Kto, .beta = 0.2, .desirable_weight = 1.3, .undesirable_weight = 0.7};
  for (const bool desirable : {true, false})
    for (const double log_probability : {-30.0, -9.0, -4.0}) {
      const auto loss = [&](double x) { return kto_loss(kto, {x, -8.5, 5}, desirable, 0.4).loss; };
      EXPECT_NEAR(kto_loss(kto, {log_probability, -8.5, 5}, desirable, 0.4).by_reply, derivative(loss, log_probability),
                  1e-10);
    }
  EXPECT_EQ(kto_loss({.kind = ObjectiveKind::Kto}, {-3, -3, 1}, true, 0).loss, 0.5);
}

TEST(PairLoss, OfAModelThatIsItsReferenceIsWhatNothingLearntCosts) {
  const ScoredReply chosen{-8, -8, 3}, rejected{-5, -5, 2};
  const auto loss = [&](PreferenceLoss kind, double beta = 0.1) {
    return pair_loss({.kind = ObjectiveKind::Dpo, .preference_loss = kind, .beta = beta}, chosen, rejected).loss;
  };
  EXPECT_EQ(loss(PreferenceLoss::Sigmoid), std::numbers::ln2);
  EXPECT_EQ(loss(PreferenceLoss::SigmoidNorm), std::numbers::ln2);
  EXPECT_EQ(loss(PreferenceLoss::Hinge), 1);
  EXPECT_EQ(loss(PreferenceLoss::ApoZero), 1);
  EXPECT_EQ(loss(PreferenceLoss::ApoDown), 1);
  EXPECT_EQ(loss(PreferenceLoss::Ipo, 0.25), 4);  // (1 / (2 beta))^2
}

// A reply that is nearly certain has odds near infinity: numbers stay finite, also in fp32's view of them.
TEST(PairLoss, OddsOfCertainRepliesAreFinite) {
  const ObjectiveOptions orpo{.kind = ObjectiveKind::Orpo};
  for (const double certain : {0.0, -1e-15, -1e-8}) {
    for (const auto& [chosen, rejected] : {std::pair(certain, -3.0), {-3.0, certain}, {certain, certain}}) {
      const PairLoss loss = pair_loss(orpo, {chosen, 0, 1}, {rejected, 0, 1});
      EXPECT_TRUE(std::isfinite(loss.loss) && std::isfinite(loss.by_chosen) && std::isfinite(loss.by_rejected));
    }
  }
  // log(p / (1 - p)) of p = 1/2 and 1/4.
  EXPECT_NEAR(log_odds_ratio({std::log(0.5), 0, 1}, {std::log(0.25), 0, 1}), std::log(3.0), 1e-15);
}

TEST(PairLoss, FarRatiosNeitherOverflowNorLoseTheirSlope) {
  const ObjectiveOptions dpo{.kind = ObjectiveKind::Dpo, .beta = 1};
  const PairLoss wrong = pair_loss(dpo, {-5000, 0, 9}, {0, 0, 9}), right = pair_loss(dpo, {0, 0, 9}, {-5000, 0, 9});
  EXPECT_EQ(wrong.loss, 5000);
  EXPECT_EQ(wrong.by_chosen, -1);
  EXPECT_EQ(right.loss, 0);
  EXPECT_EQ(right.by_rejected, 0);
}

TEST(Objective, NamesAreReadBackAndOthersRefused) {
  for (const char* known : {"sft", "dpo", "orpo", "simpo", "kto", "reward"})
    EXPECT_EQ(name(objective_from_name(known)), known);
  for (const ObjectiveOptions& options : all_objectives())
    EXPECT_EQ(preference_loss_from_name(name(options.preference_loss)), options.preference_loss);
  EXPECT_TRUE(fails_with<UserError>([] { objective_from_name("ppo"); }, "sft, dpo, orpo, simpo, kto, reward"));
}

}  // namespace
}  // namespace snug
