// What the ops that make losses of logits should give (reference.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "program/loss_ops.h"
#include "program/runtime_scalars.h"
#include "ref/tensor.h"

namespace snug::ref {

inline void cross_entropy(const CrossEntropy& op, std::vector<Tensor>& o, const RuntimeScalars& facts) {
  Tensor x = o[0];
  for (double& logit : x.values) logit = capped(logit, static_cast<double>(op.cap));
  std::vector<int32_t> targets = o[1].integers(x.rows());
  for (int64_t r = 0; r < x.rows(); r++)
    if (op.row_begin + r >= facts.loss_rows) at(targets, r) = -1;
  o[3].values = cross_entropy<double>(x.matrix(), targets);
  for (int64_t r = 0; r < x.rows(); r++) {
    const double lse = at(targets, r) < 0 ? 0 : o[3][r] + x(r, at(targets, r)), weight = o[2][r];
    const double e = static_cast<double>(op.smoothing), share = e / static_cast<double>(x.cols());
    const double z = static_cast<double>(op.z_loss);
    o[3][r] = at(targets, r) < 0 ? 0 : lse - (1 - e) * x(r, at(targets, r)) + z * lse * lse;
    for (int64_t v = 0; v < x.cols() && at(targets, r) >= 0; v++) o[3][r] -= share * x(r, v);
    o[3][r] *= weight;
    for (int64_t v = 0; v < x.cols() && op.gradient; v++) {
      const double softmax = std::exp(x(r, v) - lse) * (1 + 2 * z * lse);
      const double hit = (v == at(targets, r) ? 1 - e : 0) + share;
      const double slope = cap_slope(x(r, v), static_cast<double>(op.cap)) * weight;
      x(r, v) = at(targets, r) < 0 ? 0 : (softmax - hit) * slope * static_cast<double>(facts.loss_scale);
    }
  }
  if (op.gradient) o[0] = x;
}

// The outcomes that a teacher tells apart: each of some tokens, and any other token.
struct Outcomes {
  std::vector<double> softmax;        // of all tokens
  std::vector<size_t> of_token;       // the outcome of each
  std::vector<double> probabilities;  // of each outcome
};

inline Outcomes outcomes_of(const Tensor& x, int64_t row, const std::vector<int32_t>& ids, double temperature) {
  Outcomes all;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t v = 0; v < x.cols(); v++) largest = std::max(largest, x(row, v));
  for (int64_t v = 0; v < x.cols(); v++) sum += std::exp((x(row, v) - largest) / temperature);
  all.of_token.assign(static_cast<size_t>(x.cols()), ids.size());
  for (size_t j = 0; j < ids.size(); j++) at(all.of_token, ids[j]) = j;
  all.probabilities.resize(ids.size() + 1);
  for (int64_t v = 0; v < x.cols(); v++) {
    all.softmax.push_back(std::exp((x(row, v) - largest) / temperature) / sum);
    all.probabilities[at(all.of_token, v)] += all.softmax.back();
  }
  return all;
}

inline void top_tokens(const TopTokens& op, std::vector<Tensor>& o, const RuntimeScalars& facts) {
  Tensor &x = o[0], &ids = o[1], &log_probs = o[2];
  for (int64_t r = 0; r < x.rows(); r++) {
    const bool active = op.row_begin + r < facts.loss_rows;
    for (int64_t v = 0; v < x.cols() && active; v++) x(r, v) = capped(x(r, v), static_cast<double>(op.cap));
    std::vector<int32_t> order(static_cast<size_t>(x.cols()));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return x(r, a) > x(r, b); });
    order.resize(static_cast<size_t>(ids.cols()));
    const Outcomes all = outcomes_of(x, r, order, static_cast<double>(op.temperature));
    for (int64_t j = 0; j < ids.cols(); j++) ids(r, j) = active ? at(order, j) : 0;
    for (int64_t j = 0; j <= ids.cols(); j++) log_probs(r, j) = active ? std::log(at(all.probabilities, j)) : 0;
  }
}

// A divergence of q from p over outcomes, and its derivatives by q.
struct Divergence {
  double value = 0;
  std::vector<double> by_q;
};

inline Divergence divergence(const std::vector<double>& p, const std::vector<double>& q, double beta) {
  Divergence d;
  const auto kl = [](double a, double b) { return a > 0 ? a * std::log(a / b) : 0; };
  for (size_t j = 0; j < p.size(); j++) {
    const double m = beta * p[j] + (1 - beta) * q[j];
    d.value += beta == 0 ? kl(p[j], q[j]) : beta == 1 ? kl(q[j], p[j]) : beta * kl(p[j], m) + (1 - beta) * kl(q[j], m);
    d.by_q.push_back(q[j] == 0   ? 0
                     : beta == 0 ? -p[j] / q[j]
                     : beta == 1 ? std::log(q[j] / p[j]) + 1
                                 : (1 - beta) * std::log(q[j] / m));
  }
  return d;
}

inline void distillation(const Distillation& op, std::vector<Tensor>& o, const RuntimeScalars& facts) {
  Tensor& x = o[0];
  const double cap = static_cast<double>(op.cap), temperature = static_cast<double>(op.temperature);
  const double share = static_cast<double>(op.share);
  Tensor logits = x;
  for (int64_t r = 0; r < x.rows(); r++) {
    const bool active = op.row_begin + r < facts.loss_rows;
    for (int64_t v = 0; v < x.cols() && active; v++) x(r, v) = logits(r, v) = capped(logits(r, v), cap);
    std::vector<int32_t> ids;
    std::vector<double> p;
    for (int64_t j = 0; active && j < o[3].cols(); j++) ids.push_back(static_cast<int32_t>(o[3](r, j)));
    for (int64_t j = 0; j < o[4].cols(); j++) p.push_back(std::exp(o[4](r, j)));
    const Outcomes all = outcomes_of(logits, r, ids, temperature), plain = outcomes_of(logits, r, {}, 1);
    const Divergence d = active ? divergence(p, all.probabilities, static_cast<double>(op.beta)) : Divergence();
    const int64_t target = o[1].index(r);
    const double cross = active ? -std::log(plain.softmax[static_cast<size_t>(target)]) : 0, weight = o[2][r];
    o[5][r] = weight * (share * d.value + (1 - share) * cross);
    o[6][r] = weight * d.value;
    o[7][r] = active;
    for (int64_t v = 0; v < x.cols() && active; v++)
      if (logits(r, v) > logits(r, ids[0])) o[7][r] = 0;
    double mean = 0;
    for (size_t b = 0; b < d.by_q.size(); b++) mean += all.probabilities[b] * d.by_q[b];
    for (int64_t v = 0; v < x.cols() && op.gradient; v++) {
      const double of_divergence = active ? at(all.softmax, v) * (d.by_q[at(all.of_token, v)] - mean) / temperature : 0;
      const double of_cross = at(plain.softmax, v) - (v == target ? 1 : 0);
      const double slope = cap_slope(logits(r, v), cap) * weight * static_cast<double>(facts.loss_scale);
      x(r, v) = active ? (share * of_divergence + (1 - share) * of_cross) * slope : 0;
    }
  }
}

}  // namespace snug::ref
