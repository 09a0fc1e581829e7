// Computes dropout (Srivastava et al., JMLR 15, 2014) from a counted stream, so that the backward needs no mask.
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

}  // namespace snug::cpu
