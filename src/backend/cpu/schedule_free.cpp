// Computes schedule-free AdamW (Defazio et al., arXiv:2405.15682) and its average. The authors' code keeps z; here z -
// y is kept, which is zero before the first step, and whose small changes are not lost in the bits of z.
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/cpu/weights.h"
#include "backend/schedule_free_scalars.h"
#include "backend/update_operands.h"
#include "tensor/step_scalars.h"

namespace snug::cpu {
namespace {

// Returns y after a step; the difference z - y and v are updated.
inline float step(const ScheduleFreeScalars& s, float y, float g, float& difference, float& v) {
  v = std::fma(s.square_share * g, g, v * s.square_keep);
  const float change = std::fma(s.decay, y, g / (std::sqrt(v) / s.root_correction + s.epsilon));
  const float next = std::fma(s.rate, change, std::fma(s.share, difference, y));
  difference = std::fma(s.difference_rate, change, difference * s.difference_keep);
  return next;
}

template <class G, class Weight>
Launch update(const ScheduleFreeAdamW& adamw, const TensorView& gradient, Weight weight, float* difference, float* v,
              const StepScalars* scalars) {
  return [=, g = gradient.as<G>()](const RuntimeScalars& runtime) {
    if (scalars->finite == 0.0f) return;
    const ScheduleFreeScalars s(adamw, runtime);
    const float factor = scalars->factor;
    share_runs(Extent{gradient}, [&](int64_t, int64_t first, int64_t last) {
#pragma omp simd
      for (int64_t i = first; i < last; i++)
        weight.store(i, step(s, weight.load(i), to_float(g[i]) * factor, difference[i], v[i]), 0);
    });
  };
}

template <class Weight>
Launch to_average(const ScheduleFreeAverage& average, const TensorView& difference, Weight weight) {
  return [factor = average_factor(average), difference, weight](const RuntimeScalars&) {
    share_runs(Extent{difference}, [&, d = difference.as<float>()](int64_t, int64_t first, int64_t last) {
#pragma omp simd
      for (int64_t i = first; i < last; i++) weight.store(i, std::fma(factor, d[i], weight.load(i)), 0);
    });
  };
}

}  // namespace

Launch bind_schedule_free_adamw(const ScheduleFreeAdamW& adamw, Operands operands) {
  const TensorView gradient = operands.dense("g", kActivation);
  const int64_t n = gradient.count();
  const UpdatedWeight updated = updated_weight(operands, adamw.split, n);
  float* const difference = operands.vector("d", {DType::F32}, n).as<float>();
  float* const v = operands.vector("v", {DType::F32}, n).as<float>();
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(gradient.dtype, [&]<class G>() {
    return with_weight<PlainWeight, SplitWeight>(
        updated, [&](auto weight) { return update<G>(adamw, gradient, weight, difference, v, scalars); });
  });
}

Launch bind_schedule_free_average(const ScheduleFreeAverage& average, Operands operands) {
  const TensorView difference = operands.dense("d", {DType::F32});
  const UpdatedWeight updated = updated_weight(operands, average.split, difference.count());
  operands.done();
  return with_weight<PlainWeight, SplitWeight>(updated,
                                               [&](auto weight) { return to_average(average, difference, weight); });
}

}  // namespace snug::cpu
