// Draws weights from a counted stream of random numbers.
#include "backend/cpu/kernels.h"
#include "backend/cpu/runs.h"
#include "base/rng.h"

namespace snug::cpu {
namespace {

float drawn(const RandomFill& fill, const Random& random, uint64_t place) {
  switch (fill.distribution) {
    case Distribution::Normal:
      return fill.scale * random.normal(place);
    case Distribution::Uniform:
      return fill.scale * (2.0f * random.uniform(place) - 1.0f);
    case Distribution::Constant:
      return fill.scale;
  }
  internal_error("random_fill: distribution {} has no meaning", static_cast<int>(fill.distribution));
}

}  // namespace

Launch bind_random_fill(const RandomFill& fill, Operands operands) {
  const TensorView x = operands.dense("x", kActivation);
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [fill, x](const RuntimeScalars& runtime) {
      const Random random(fill.seed, RandomPurpose::Initialisation, fill.stream);
      share_runs(Extent{x}, [&, first = fill.place(runtime.step)](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) x.as<T>()[i] = T(drawn(fill, random, first + static_cast<uint64_t>(i)));
      });
    };
  });
}

}  // namespace snug::cpu
