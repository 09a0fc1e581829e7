// Finds a teacher's most likely tokens, and how far a row's softmax is from what the teacher gives them and all others.
#include <array>
#include <numeric>

#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/divergence.h"

namespace snug::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

void cap_row(float* x, int64_t n, float cap) {
  if (cap <= 0) return;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] = cap * tanh(x[i] / cap);
}

// Holds a row's logits at some tokens, and how its softmax at a temperature is divided between each of these and all
// other tokens.
struct Division {
  std::array<float, kMostTeacherTokens> logits;
  float maximum = kNothing, sum = 0;  // of the others: their largest logit, and the sum of exponentials relative to it
  std::array<double, kMostTeacherTokens + 1> log_probs;  // rounded to fp32; the others' last
};

// Divides the row x, whose logits at the tokens become -inf.
void divide(float* x, int64_t n, std::span<const int32_t> ids, float temperature, Division& into) {
  for (size_t j = 0; j < ids.size(); j++) into.logits[j] = x[ids[j]];
  for (const int32_t id : ids) x[id] = kNothing;
  const float m = into.maximum = maximum(n, [=](int64_t i) { return x[i]; });
  const float scale = 1.0f / temperature;
  into.sum = m == kNothing ? 0 : sum(n, [=](int64_t i) { return exp((x[i] - m) * scale); });
  const double t = static_cast<double>(temperature);
  const double rest = std::log(static_cast<double>(into.sum)) + (m == kNothing ? 0 : static_cast<double>(m) / t);
  double largest = rest;
  for (size_t j = 0; j < ids.size(); j++) largest = std::max(largest, static_cast<double>(into.logits[j]) / t);
  double total = std::exp(rest - largest);
  for (size_t j = 0; j < ids.size(); j++) total += std::exp(static_cast<double>(into.logits[j]) / t - largest);
  const double all = std::log(total) + largest;
  const auto rounded = [](double log_prob) { return static_cast<double>(static_cast<float>(log_prob)); };
  for (size_t j = 0; j < ids.size(); j++) into.log_probs[j] = rounded(static_cast<double>(into.logits[j]) / t - all);
  into.log_probs[ids.size()] = rounded(rest - all);
}

// Puts back the logits that were taken out of a row.
void put_back(float* x, std::span<const int32_t> ids, const Division& division) {
  for (size_t j = 0; j < ids.size(); j++) x[ids[j]] = division.logits[j];
}

// Writes the tokens with the largest logits, the largest first; of equal ones the one with the lower number.
void find_top(const float* x, int64_t n, std::span<int32_t> ids) {
  const auto before = [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::make_heap(ids, before);  // the last of them is at the front
  for (int64_t i = std::ssize(ids); i < n; i++) {
    if (!(x[i] > x[ids.front()])) continue;
    std::ranges::pop_heap(ids, before);
    ids.back() = static_cast<int32_t>(i);
    std::ranges::push_heap(ids, before);
  }
  std::ranges::sort_heap(ids, before);
}

// Holds what a row is judged by.
struct Judged {
  int64_t target = 0;
  float weight = 0;
  std::span<const int32_t> ids;
  const float* log_probs = nullptr;
};

struct RowResult {
  double loss = 0, divergence = 0;
  bool agrees = false;
};

// Makes the gradients of a row's logits, times `scale`, of its division and of the slopes of its outcomes.
void make_gradient(float* x, int64_t n, const Distillation& op, const Judged& row, const Division& division,
                   std::span<const double> slopes, double cross_lse, float hit, float scale) {
  const auto slope = [cap = op.cap](float y) { return cap > 0 ? 1.0f - y / cap * (y / cap) : 1.0f; };
  const size_t k = row.ids.size();
  double mean = 0;
  for (const double one : slopes) mean += one;
  const auto of_outcome = [&](size_t j) {
    return (slopes[j] - std::exp(division.log_probs[j]) * mean) * static_cast<double>(op.share / op.temperature);
  };
  const float own = 1 - op.share, lse = static_cast<float>(cross_lse);
  const float m = division.maximum, inverse = 1.0f / op.temperature;
  const float others = division.sum > 0 ? static_cast<float>(of_outcome(k)) / division.sum : 0;
  const auto cross = [=](float y) { return own > 0 ? own * exp(y - lse) : 0.0f; };
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float y = x[i];
    x[i] = (others * exp((y - m) * inverse) + cross(y)) * scale * slope(y);
  }
  for (size_t j = 0; j < k; j++) {
    const float y = division.logits[j];
    x[row.ids[j]] = (static_cast<float>(of_outcome(j)) + cross(y)) * scale * slope(y);
  }
  if (own > 0) x[row.target] -= own * scale * slope(hit);
}

RowResult judge_row(float* x, int64_t n, const Distillation& op, const Judged& row, float loss_scale) {
  cap_row(x, n, op.cap);
  RowResult result;
  double cross_lse = 0;
  const float largest = maximum(n, [=](int64_t i) { return x[i]; }), hit = x[row.target];
  if (op.share < 1)
    cross_lse = std::log(static_cast<double>(sum(n, [=](int64_t i) { return exp(x[i] - largest); }))) +
                static_cast<double>(largest);
  result.agrees = x[row.ids[0]] >= largest;
  Division division;
  divide(x, n, row.ids, op.temperature, division);
  std::array<double, kMostTeacherTokens + 1> slopes{};
  const size_t outcomes = row.ids.size() + 1;
  for (size_t j = 0; j < outcomes; j++) {
    const DivergenceTerm term =
        divergence_term(static_cast<double>(row.log_probs[j]), division.log_probs[j], static_cast<double>(op.beta));
    result.divergence += term.value;
    slopes[j] = term.slope;
  }
  const double share = static_cast<double>(op.share);
  result.loss = share * result.divergence + (1 - share) * (cross_lse - static_cast<double>(hit));
  if (op.gradient)
    make_gradient(x, n, op, row, division, std::span(slopes).first(outcomes), cross_lse, hit, loss_scale * row.weight);
  else
    put_back(x, row.ids, division);
  return result;
}

}  // namespace

Launch bind_top_tokens(const TopTokens& attrs, Operands operands) {
  const auto of = top_tokens_operands(attrs, operands);
  const int64_t rows = of.logits.rows(), vocabulary = of.logits.cols();
  return [=, x = Rows<float>(of.logits), ids = Rows<int32_t>(of.ids),
          log_probs = Rows<float>(of.log_probs)](const RuntimeScalars& runtime) {
    const int64_t active = std::clamp<int64_t>(runtime.loss_rows - attrs.row_begin, 0, rows);
    share_rows(rows, vocabulary, [&](int64_t row) {
      const std::span<int32_t> top(ids[row], static_cast<size_t>(of.tokens));
      const std::span<float> shares(log_probs[row], top.size() + 1);
      if (row >= active) {
        std::ranges::fill(top, 0);
        std::ranges::fill(shares, 0.0f);
        return;
      }
      cap_row(x[row], vocabulary, attrs.cap);
      find_top(x[row], vocabulary, top);
      Division division;
      divide(x[row], vocabulary, top, attrs.temperature, division);
      for (size_t j = 0; j < shares.size(); j++) shares[j] = static_cast<float>(division.log_probs[j]);
      put_back(x[row], top, division);
    });
  };
}

Launch bind_distillation(const Distillation& attrs, Operands operands) {
  const auto of = distillation_operands(attrs, operands);
  const int64_t rows = of.logits.rows(), vocabulary = of.logits.cols();
  return [=, x = Rows<float>(of.logits), ids = Rows<int32_t>(of.ids),
          log_probs = Rows<float>(of.log_probs)](const RuntimeScalars& runtime) {
    const int64_t active = std::clamp<int64_t>(runtime.loss_rows - attrs.row_begin, 0, rows);
    const auto known = [=](int32_t token) { return 0 <= token && token < vocabulary; };
    for (int64_t i = 0; i < active; i++)
      check(known(of.targets[i]) && std::all_of(ids[i], ids[i] + of.tokens, known),
            "distillation: row {} has a target or a teacher's token outside [0, {})", i, vocabulary);
    share_rows(rows, vocabulary, [&](int64_t row) {
      if (row >= active) {
        of.losses[row] = of.divergences[row] = of.agreements[row] = 0;
        if (attrs.gradient) std::fill_n(x[row], vocabulary, 0.0f);
        return;
      }
      const Judged judged{of.targets[row], of.weights[row], {ids[row], static_cast<size_t>(of.tokens)}, log_probs[row]};
      const RowResult found = judge_row(x[row], vocabulary, attrs, judged, runtime.loss_scale);
      const double weight = static_cast<double>(judged.weight);
      of.losses[row] = static_cast<float>(weight * found.loss);
      of.divergences[row] = static_cast<float>(weight * found.divergence);
      of.agreements[row] = found.agrees ? 1 : 0;
    });
  };
}

}  // namespace snug::cpu
