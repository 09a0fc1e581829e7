// Weights drawn from a counted stream of random numbers.
#include "backend/cpu/kernels.h"
#include "backend/cpu/runs.h"
#include "base/rng.h"

namespace snug::cpu {

Launch bind_random_fill(const RandomFill& fill, Operands operands) {
  const TensorView x = operands.dense("x", kActivation);
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [fill, x](const PassFacts&) {
      const Random random(fill.seed, RandomPurpose::Initialisation, fill.stream);
      share_runs(Extent{x}, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
          const uint64_t place = fill.first + static_cast<uint64_t>(i);
          const float number =
              fill.distribution == Distribution::Normal ? random.normal(place) : 2.0f * random.uniform(place) - 1.0f;
          x.as<T>()[i] = T(fill.scale * number);
        }
      });
    };
  });
}

}  // namespace snug::cpu
