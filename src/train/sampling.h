// How the next token is chosen of its logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace snug {

// What is done to the logits, in this order, as the logits processors of transformers do it.
struct SamplingOptions {
  // Logits of tokens that the text holds already are divided by this where they are positive, and multiplied by it
  // where they are not (Keskar et al., arXiv:1909.05858). 1: nothing is changed.
  double repetition_penalty = 1;
  double temperature = 0;  // that logits are divided by; 0: the likeliest token is chosen (the lowest id among equals)
  int64_t top_k = 0;       // so many of the likeliest tokens may be drawn, and those as likely as the last; 0: all
  double top_p = 1;        // of those, the fewest of the likeliest whose probabilities sum to this
  double min_p = 0;        // of those, the ones at least this part as likely as the likeliest
  uint64_t seed = 42;
};

// Chooses tokens. One thread's at a time; it allocates only for a larger vocabulary or a longer text than before.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  // Returns the token that draw number `draw` chooses; the same number, logits and text give the same token. `text`:
  // the prompt and what was generated behind it.
  int32_t choose(std::span<const float> logits, std::span<const int32_t> text, uint64_t draw);

  // Returns for each token its probability, up to a factor that all have, or 0 where it may not be drawn; valid until
  // the next call. The temperature may not be 0.
  std::span<const double> weights(std::span<const float> logits, std::span<const int32_t> text);

 private:
  // Returns the logits with their penalty: the given ones where there is none.
  std::span<const float> penalised(std::span<const float> logits, std::span<const int32_t> text);
  void keep_top_k();
  void keep_top_p();

  SamplingOptions options_;
  std::vector<float> penalised_;
  std::vector<double> weights_;
  std::vector<size_t> order_;
};

}  // namespace snug
