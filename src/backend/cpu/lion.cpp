// Computes Lion (Chen et al., arXiv:2302.06675), with the operations and roundings of its authors' code in torch on one
// tensor at a time:
//   w *= 1 - lr decay;   w -= lr sign(beta1 m + (1 - beta1) g);   m = beta2 m + (1 - beta2) g
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/cpu/weights.h"
#include "backend/lion_scalars.h"
#include "backend/update_operands.h"
#include "tensor/step_scalars.h"

namespace snug::cpu {
namespace {

// Returns the weight after a step; m is updated.
inline float step(const LionScalars& s, float w, float g, float& m) {
  const float blend = std::fma(s.blend_share, g, m * s.blend_keep);
  m = std::fma(s.mean_share, g, m * s.mean_keep);
  const float change = blend > 0 ? s.rate : blend < 0 ? -s.rate : 0.0f;
  return w * s.keep - change;
}

template <class G, class Weight>
Launch update(const Lion& lion, const TensorView& gradient, Weight weight, float* m, const StepScalars* scalars) {
  return [=, g = gradient.as<G>()](const RuntimeScalars& runtime) {
    if (scalars->finite == 0.0f) return;
    const LionScalars s(lion, runtime);
    const float factor = scalars->factor;
    share_runs(Extent{gradient}, [&](int64_t, int64_t first, int64_t last) {
#pragma omp simd
      for (int64_t i = first; i < last; i++) weight.store(i, step(s, weight.load(i), to_float(g[i]) * factor, m[i]), 0);
    });
  };
}

}  // namespace

Launch bind_lion(const Lion& lion, Operands operands) {
  const TensorView gradient = operands.dense("g", kActivation);
  const int64_t n = gradient.count();
  const UpdatedWeight updated = updated_weight(operands, lion.split, n);
  float* const m = operands.vector("m", {DType::F32}, n).as<float>();
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(gradient.dtype, [&]<class G>() {
    return with_weight<PlainWeight, SplitWeight>(
        updated, [&](auto weight) { return update<G>(lion, gradient, weight, m, scalars); });
  });
}

}  // namespace snug::cpu
