// Computes dropout (Srivastava et al., JMLR 15, 2014) from a counted stream, so that the backward needs no mask, and
// noise on embeddings (NEFTune) from another.
#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "base/rng.h"

namespace snug::cpu {

Launch bind_dropout(const Dropout& dropout, Operands operands) {
  const auto of = dropout_operands(dropout, operands);
  const TensorView x = of.x, y = of.y;
  const uint32_t least = of.least;
  const float scale = of.scale;
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=, from = Rows<T>(x), to = Rows<T>(y), extent = Extent{x, y}](const RuntimeScalars& runtime) {
      const Random random(dropout.seed, RandomPurpose::Dropout, dropout.stream);
      const int64_t before = runtime.first_token * x.cols();
      share_runs(extent, [&](int64_t row, int64_t first, int64_t last) {
        constexpr int64_t kTile = 1024;
        uint32_t bits[kTile];
        for (int64_t begin = first; begin < last; begin += kTile) {
          const int64_t width = std::min(kTile, last - begin);
          const auto place = static_cast<uint64_t>(before + row * extent.cols + begin);
          random.bits(at_step(runtime.step, place), {bits, static_cast<size_t>(width)});
          const T* source = from[row] + begin;
          T* target = to[row] + begin;
#pragma omp simd
          for (int64_t i = 0; i < width; i++)
            store(target[i], (bits[i] >> 8) >= least ? to_float(source[i]) * scale : 0.0f);
        }
      });
    };
  });
}

Launch bind_embedding_noise(const EmbeddingNoise& noise, Operands operands) {
  const auto of = embedding_noise_operands(operands);
  return dispatch_activation(of.x.dtype, [&]<class T>() -> Launch {
    return [=, x = Rows<T>(of.x), rows = of.x.rows(), cols = of.x.cols()](const RuntimeScalars& runtime) {
      const Random random(noise.seed, RandomPurpose::EmbeddingNoise);
      const std::span documents(of.documents, static_cast<size_t>(documents_of(runtime, of)) + 1);
      share_rows(rows, cols, [&](int64_t row) {
        const auto end = std::ranges::upper_bound(documents, row);
        if (end == documents.begin() || end == documents.end()) return;
        const auto length = static_cast<double>(*end - *(end - 1));
        const auto most = static_cast<float>(noise.alpha / std::sqrt(length * static_cast<double>(cols)));
        constexpr int64_t kTile = 1024;
        uint32_t bits[kTile];
        for (int64_t begin = 0; begin < cols; begin += kTile) {
          const int64_t width = std::min(kTile, cols - begin);
          const auto place = static_cast<uint64_t>((runtime.tokens_before + row) * cols + begin);
          random.bits(at_step(runtime.step, place), {bits, static_cast<size_t>(width)});
          T* const values = x[row] + begin;
#pragma omp simd
          for (int64_t i = 0; i < width; i++) {
            const float uniform = static_cast<float>(static_cast<int32_t>(bits[i] >> 8)) * 0x1p-23f - 1.0f;
            store(values[i], to_float(values[i]) + uniform * most);
          }
        }
      });
    };
  });
}

}  // namespace snug::cpu
