// Computes what Muon does element by element: momentum, the division by a norm, and the step of the weights.
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/cpu/weights.h"
#include "backend/muon_scalars.h"
#include "backend/update_operands.h"
#include "tensor/step_scalars.h"

namespace snug::cpu {
namespace {

template <class U, class Weight>
Launch descend(const Descend& attrs, const TensorView& direction, Weight weight, const StepScalars* scalars) {
  return [=, u = direction.as<U>()](const RuntimeScalars& runtime) {
    if (scalars->finite == 0.0f) return;
    const DescendScalars s(attrs, runtime);
    share_runs(Extent{direction}, [&](int64_t, int64_t first, int64_t last) {
#pragma omp simd
      for (int64_t i = first; i < last; i++)
        weight.store(i, std::fma(s.rate, to_float(u[i]), weight.load(i) * s.keep), 0);
    });
  };
}

}  // namespace

Launch bind_momentum(const Momentum& momentum, Operands operands) {
  const TensorView gradient = operands.dense("g", kActivation);
  const int64_t n = gradient.count();
  const TensorView kept = operands.vector("m", {DType::F32}, n), direction = operands.vector("d", {gradient.dtype}, n);
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(gradient.dtype, [&]<class G>() -> Launch {
    return [=, s = MomentumScalars(momentum), g = gradient.as<G>(), m = kept.as<float>(),
            d = direction.as<G>()](const RuntimeScalars&) {
      const float factor = scalars->factor;
      const bool finite = scalars->finite != 0.0f;
      share_runs(Extent{gradient}, [&](int64_t, int64_t first, int64_t last) {
        if (!finite) return std::fill(d + first, d + last, G{});
#pragma omp simd
        for (int64_t i = first; i < last; i++) {
          const float change = s.share * (to_float(g[i]) * factor), next = std::fma(s.keep, m[i], change);
          m[i] = next;
          store(d[i], std::fma(s.keep, next, change));
        }
      });
    };
  });
}

Launch bind_normalize(Operands operands) {
  const TensorView x = operands.dense("x", kActivation);
  const float* const sum = operands.vector("sum", {DType::F32}, 1).as<float>();
  const TensorView y = operands.vector("y", {x.dtype}, x.count());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=, from = x.as<T>(), to = y.as<T>()](const RuntimeScalars&) {
      const float norm = std::max(std::sqrt(*sum), kLeastNorm);
      share_runs(Extent{x}, [&](int64_t, int64_t first, int64_t last) {
#pragma omp simd
        for (int64_t i = first; i < last; i++) store(to[i], to_float(from[i]) / norm);
      });
    };
  });
}

Launch bind_descend(const Descend& attrs, Operands operands) {
  const TensorView direction = operands.dense("u", kActivation);
  const UpdatedWeight updated = updated_weight(operands, attrs.split, direction.count());
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(direction.dtype, [&]<class U>() {
    return with_weight<PlainWeight, SplitWeight>(
        updated, [&](auto weight) { return descend<U>(attrs, direction, weight, scalars); });
  });
}

}  // namespace snug::cpu
