// The noise on embeddings of op EmbeddingNoise, in plain loops over double.
#pragma once

#include <cmath>

#include "base/rng.h"
#include "program/ops.h"
#include "ref/tensor.h"

namespace snug::ref {

inline void add_noise(const EmbeddingNoise& op, const RuntimeScalars& facts, Tensor& x, const Tensor& documents) {
  const Random random(op.seed, RandomPurpose::EmbeddingNoise);
  for (int64_t d = 0, n = x.cols(); d < facts.documents; d++)
    for (int64_t begin = documents.index(d) * n, end = documents.index(d + 1) * n, i = begin; i < end; i++) {
      const auto place = at_step(facts.step, static_cast<uint64_t>(facts.tokens_before * n + i));
      x(i / n, i % n) +=
          op.alpha * (2 * static_cast<double>(random.uniform(place)) - 1) / std::sqrt(static_cast<double>(end - begin));
    }
}

}  // namespace snug::ref
