// Computes dropout (Srivastava et al., JMLR 15, 2014) from a counted stream, so that the backward needs no mask.
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "base/rng.h"

namespace snug::cpu {

Launch bind_dropout(const Dropout& dropout, Operands operands) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView y = operands.matrix("y", {x.dtype}, x.rows(), x.cols());
  operands.expect(0 <= dropout.p && dropout.p < 1, "p is {}, expected at least 0 and less than 1", dropout.p);
  operands.done();
  // Compares as Random::uniform() >= p, in whole numbers.
  const auto least = static_cast<uint32_t>(std::ceil(dropout.p * 0x1p24));
  const auto scale = static_cast<float>(1 / (1 - dropout.p));
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
