#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/rng.h"

namespace snug {

int32_t Sampler::choose(std::span<const float> logits, std::span<const int32_t> text, uint64_t draw) {
  if (options_.temperature <= 0) {
    const std::span<const float> scores = penalised(logits, text);
    return static_cast<int32_t>(std::ranges::max_element(scores) - scores.begin());
  }
  weights(logits, text);
  const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  double left = total * static_cast<double>(Random(options_.seed, RandomPurpose::Sampling).uniform(draw));
  for (size_t i = 0; i < weights_.size(); i++)
    if ((left -= weights_[i]) < 0) return static_cast<int32_t>(i);
  return static_cast<int32_t>(std::ranges::max_element(weights_) - weights_.begin());
}

std::span<const double> Sampler::weights(std::span<const float> logits, std::span<const int32_t> text) {
  const std::span<const float> scores = penalised(logits, text);
  const double most = std::ranges::max(scores);
  weights_.resize(scores.size());
  for (size_t i = 0; i < scores.size(); i++)
    weights_[i] = std::exp((static_cast<double>(scores[i]) - most) / options_.temperature);
  if (options_.top_k > 0) keep_top_k();
  if (options_.top_p < 1) keep_top_p();
  if (options_.min_p > 0)
    for (double& weight : weights_)
      if (weight < options_.min_p) weight = 0;  // the likeliest has weight 1
  return weights_;
}

std::span<const float> Sampler::penalised(std::span<const float> logits, std::span<const int32_t> text) {
  if (options_.repetition_penalty == 1) return logits;
  penalised_.assign(logits.begin(), logits.end());
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (const int32_t token : text) {
    const auto at = static_cast<size_t>(token);
    penalised_[at] = logits[at] > 0 ? logits[at] / penalty : logits[at] * penalty;  // once, however often it occurs
  }
  return penalised_;
}

void Sampler::keep_top_k() {
  const auto k = static_cast<size_t>(options_.top_k);
  if (k >= weights_.size()) return;
  std::vector<double> sorted = weights_;
  const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(k) - 1;
  std::ranges::nth_element(sorted, last, std::greater<>());
  for (double& weight : weights_)
    if (weight < *last) weight = 0;
}

// The likeliest are taken from a heap: most often they are few.
void Sampler::keep_top_p() {
  order_.resize(weights_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  const auto comes_later = [&](size_t a, size_t b) {
    return weights_[a] != weights_[b] ? weights_[a] < weights_[b] : a > b;
  };
  std::ranges::make_heap(order_, comes_later);
  double left = options_.top_p * std::accumulate(weights_.begin(), weights_.end(), 0.0);
  auto end = order_.end();
  do {
    std::pop_heap(order_.begin(), end, comes_later);
    left -= weights_[*--end];
  } while (left > 0 && end != order_.begin());
  for (auto dropped = order_.begin(); dropped != end; ++dropped) weights_[*dropped] = 0;
}

}  // namespace snug
