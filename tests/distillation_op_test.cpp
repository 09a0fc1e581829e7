// The op by which a model learns from a teacher: its gradient against derivatives by complex steps, and what follows by
// hand.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "backend/cpu/backend.h"
#include "ref/forward.h"
#include "tensor/view.h"

namespace snug {
namespace {

using Complex = std::complex<double>;

// Operands of rows of logits, and what an op makes of them.
struct Rows {
  int64_t rows, vocabulary, k;
  std::vector<float> logits, weights, log_probs, losses, divergences, agreements;
  std::vector<int32_t> targets, ids;

  Rows(int64_t vocabulary, int64_t k, std::vector<float> logits)
      : rows(static_cast<int64_t>(logits.size()) / vocabulary),
        vocabulary(vocabulary),
        k(k),
        logits(std::move(logits)) {
    const auto n = static_cast<size_t>(rows);
    for (std::vector<float>* const each : {&weights, &losses, &divergences, &agreements}) each->assign(n, 1);
    targets.assign(n, 0);
    ids.resize(n * static_cast<size_t>(k));
    log_probs.resize(n * static_cast<size_t>(k + 1));
  }

  void run(const Attrs& attrs, const RuntimeScalars& runtime) {
    const auto view = [](auto& values, DType dtype, const Shape& shape) {
      return TensorView{reinterpret_cast<std::byte*>(values.data()), dtype, shape, shape.cols()};
    };
    std::vector<TensorView> views{view(logits, DType::F32, {rows, vocabulary})};
    const TensorView top = view(ids, DType::I32, {rows, k}), shares = view(log_probs, DType::F32, {rows, k + 1});
    if (std::holds_alternative<Distillation>(attrs)) {
      views.insert(views.end(), {view(targets, DType::I32, {rows}), view(weights, DType::F32, {rows}), top, shares});
      for (std::vector<float>* const each : {&losses, &divergences, &agreements})
        views.push_back(view(*each, DType::F32, {rows}));
    } else {
      views.insert(views.end(), {top, shares});
    }
    Op op;
    op.attrs = attrs;
    op.site = "distillation_op_test";
    for (const TensorView& of : views)
      op.operands.push_back(
          {static_cast<BufferId>(op.operands.size()), Access::ReadWrite, of.dtype, of.shape, 0, of.shape.cols()});
    CpuBackend().bind(op, views)(runtime);
  }
};

// Three of four logits are the logarithms of 6, 3 and 2, the last that of 1: shares of 1/2, 1/4, 1/6 and 1/12.
const std::vector<float> kByHand{std::log(3.0f), std::log(6.0f), 0.0f, std::log(2.0f)};

TEST(TopTokens, KeepsTheLargestSharesAndThatOfAllOthers) {
  Rows rows(4, 2, kByHand);
  rows.run(TopTokens{}, {.loss_rows = 1});
  EXPECT_EQ(rows.ids, (std::vector<int32_t>{1, 0}));
  EXPECT_NEAR(std::exp(rows.log_probs[0]), 1.0 / 2, 1e-6);
  EXPECT_NEAR(std::exp(rows.log_probs[1]), 1.0 / 4, 1e-6);
  EXPECT_NEAR(std::exp(rows.log_probs[2]), 1.0 / 4, 1e-6) << "1/6 and 1/12";
}

TEST(TopTokens, AMillionthOfTheProbabilityIsNotLostBesideTheRest) {
  Rows rows(3, 1, {20, 0, 0});
  rows.run(TopTokens{}, {.loss_rows = 1});
  EXPECT_NEAR(rows.log_probs[1], std::log(2.0) - 20, 1e-5);
}

TEST(Distillation, AModelThatIsItsTeacherLosesNothing) {
  Rows rows(4, 2, kByHand);
  rows.run(TopTokens{.temperature = 0.75f}, {.loss_rows = 1});
  for (const float beta : {0.0f, 0.25f, 1.0f}) {
    Rows model = rows;
    model.logits = kByHand;
    model.run(Distillation{.gradient = true, .temperature = 0.75f, .beta = beta}, {.loss_rows = 1, .loss_scale = 1});
    if (beta == 0 || beta == 1)
      EXPECT_EQ(model.losses[0], 0.0f);
    else
      EXPECT_NEAR(model.losses[0], 0, 1e-15) << "the mixture's logarithm is rounded";
    EXPECT_EQ(model.agreements[0], 1.0f);
    for (const float gradient : model.logits) EXPECT_NEAR(gradient, 0, 1e-7) << beta;
  }
}

// The teacher gives tokens 1 and 2 a half and a quarter, the model a half and 1/12: what is left is 1/4 and 5/12.
TEST(Distillation, DivergencesByHand) {
  Rows rows(4, 2, kByHand);
  rows.ids = {1, 2};
  rows.log_probs = {std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  const std::array p{0.5, 0.25, 0.25}, q{0.5, 1.0 / 12, 5.0 / 12};
  const auto kl = [](const std::array<double, 3>& a, const std::array<double, 3>& b) {
    double sum = 0;
    for (size_t j = 0; j < 3; j++) sum += a[j] * std::log(a[j] / b[j]);
    return sum;
  };
  const std::array half{0.5, 1.0 / 6, 1.0 / 3};
  rows.weights = {3};
  rows.targets = {3};
  for (const auto& [beta, divergence] :
       {std::pair(0.0f, kl(p, q)), {1.0f, kl(q, p)}, {0.5f, 0.5 * kl(p, half) + 0.5 * kl(q, half)}}) {
    Rows model = rows;
    model.run(Distillation{.beta = beta, .share = 0.25f}, {.loss_rows = 1});
    EXPECT_NEAR(model.divergences[0], 3 * divergence, 1e-6) << beta;
    EXPECT_NEAR(model.losses[0], 3 * (0.25 * divergence + 0.75 * std::log(6.0)), 1e-5) << "the target has 1/6";
    EXPECT_EQ(model.logits, kByHand) << "without a gradient logits stay";
  }
}

TEST(Distillation, TheTeachersFirstTokenIsTheModelsOrIsNot) {
  Rows rows(4, 2, kByHand);
  rows.log_probs = {std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  for (const int32_t first : {0, 1, 2, 3}) {
    rows.ids = {first, (first + 1) % 4};
    rows.logits = kByHand;
    rows.run(Distillation{}, {.loss_rows = 1});
    EXPECT_EQ(rows.agreements[0], first == 1 ? 1.0f : 0.0f);
  }
}

// The loss of a row as a function of its logits, for derivatives by complex steps.
Complex loss_of(const std::vector<Complex>& logits, const Rows& rows, size_t row, const Distillation& op) {
  const auto k = static_cast<size_t>(rows.k);
  const double temperature = static_cast<double>(op.temperature), beta = static_cast<double>(op.beta),
               share = static_cast<double>(op.share), cap = static_cast<double>(op.cap);
  const auto logit = [&](size_t v) {
    const Complex x = logits[row * static_cast<size_t>(rows.vocabulary) + v];
    return cap > 0 ? cap * std::tanh(x / cap) : x;
  };
  Complex all = 0, plain = 0;
  for (size_t v = 0; v < static_cast<size_t>(rows.vocabulary); v++)
    all += std::exp(logit(v) / temperature), plain += std::exp(logit(v));
  Complex rest = all, loss = 0;
  const auto add = [&](double log_p, const Complex& q) {
    const double p = std::exp(log_p);
    const Complex m = beta * p + (1 - beta) * q;
    loss += share * (beta == 0   ? p * (log_p - std::log(q))
                     : beta == 1 ? q * (std::log(q) - log_p)
                                 : beta * p * (log_p - std::log(m)) + (1 - beta) * q * (std::log(q) - std::log(m)));
  };
  const float* const log_probs = rows.log_probs.data() + row * (k + 1);
  for (size_t j = 0; j < k; j++) {
    const Complex one = std::exp(logit(static_cast<size_t>(rows.ids[row * k + j])) / temperature);
    rest -= one;
    add(static_cast<double>(log_probs[j]), one / all);
  }
  add(static_cast<double>(log_probs[k]), rest / all);
  loss += (1 - share) * (std::log(plain) - logit(static_cast<size_t>(rows.targets[row])));
  return loss * static_cast<double>(rows.weights[row]);
}

TEST(Distillation, GradientsAreThoseOfComplexSteps) {
  std::vector<float> logits;
  for (int i = 0; i < 3 * 17; i++) logits.push_back(static_cast<float>((i * 37) % 23) / 4 - 2.5f);
  Rows rows(17, 4, logits);
  rows.ids = {3, 0, 11, 16, 5, 6, 7, 8, 1, 2, 4, 9};
  rows.targets = {0, 12, 4};  // among the teacher's, beside them, among them
  rows.weights = {1, -0.5f, 2};
  for (size_t i = 0; i < 3; i++) {
    const std::array shares{0.4f, 0.3f, 0.1f, 0.05f, 0.15f};
    for (size_t j = 0; j < 5; j++) rows.log_probs[i * 5 + j] = std::log(shares[(i + j) % 5]);
  }
  for (const float beta : {0.0f, 0.3f, 1.0f})
    for (const float share : {1.0f, 0.4f})
      for (const float cap : {0.0f, 3.0f}) {
        const Distillation op{.gradient = true, .cap = cap, .temperature = 1.75f, .beta = beta, .share = share};
        Rows model = rows;
        model.run(op, {.loss_rows = 3, .loss_scale = 0.25f});
        for (size_t row = 0; row < 3; row++) {
          std::vector<Complex> at(logits.begin(), logits.end());
          EXPECT_NEAR(model.losses[row], loss_of(at, rows, row, op).real(), 1e-5);
          for (size_t v = row * 17; v < (row + 1) * 17; v++) {
            at[v] += Complex(0, 1e-30);
            EXPECT_NEAR(model.logits[v], 0.25 * loss_of(at, rows, row, op).imag() / 1e-30, 1e-6) << beta << " " << v;
            at[v] = static_cast<double>(logits[v]);
          }
        }
      }
}

}  // namespace
}  // namespace snug
