// Computes Lion, element by element with the operations and roundings of cpu/lion.cpp, so that both give equal bits.
#include "backend/cuda/adamw.cuh"
#include "backend/lion_scalars.h"

namespace snug::cuda {
namespace {

// Updates N elements in each thread.
template <int N, class Weight, class G>
__global__ void __launch_bounds__(kThreads)
    lion_kernel(LionScalars s, const G* g, int64_t n, const StepScalars* step_scalars, Weight weight, float* m) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  const float factor = step_scalars->factor, finite = step_scalars->finite;
  Raw<G, N> gradient;
  gradient.fetch(g + i);
  Raw<float, N> means;
  means.fetch(m + i);
  const auto weights = weight.template fetch<N>(i);
  Pack<float, N> w = weights.floats(), mean = means.floats();
  const Pack<float, N> all = gradient.floats();
#pragma unroll
  for (int k = 0; k < N; k++) {
    const float change = all[k] * factor, blend = fmaf(s.blend_share, change, mean[k] * s.blend_keep);
    mean[k] = fmaf(s.mean_share, change, mean[k] * s.mean_keep);
    w[k] = w[k] * s.keep - (blend > 0 ? s.rate : blend < 0 ? -s.rate : 0.0f);
  }
  if (finite == 0.0f) return;  // only here, as the compiler would otherwise request nothing before it
  weight.template store<N>(i, w);
  save<N>(m + i, mean);
}

template <class G, class Weight>
Launch update(const Lion& lion, const TensorView& gradient, bool is_wide, Weight weight, float* m,
              const StepScalars* scalars, cudaStream_t stream) {
  return dispatch_wide(is_wide, [&]<int N>() -> Launch {
    return [=, g = gradient.as<G>(), n = gradient.count()](const RuntimeScalars& runtime) {
      if (n == 0) return;
      lion_kernel<N>
          <<<blocks_of(n, N * kThreads), kThreads, 0, stream>>>(LionScalars(lion, runtime), g, n, scalars, weight, m);
      check_launch("lion");
    };
  });
}

}  // namespace

Launch bind_lion(const Lion& lion, Operands operands, cudaStream_t stream) {
  const TensorView gradient = operands.dense("g", kActivation);
  const int64_t n = gradient.count();
  const UpdatedWeight updated = updated_weight(operands, lion.split, n);
  const TensorView m = operands.vector("m", {DType::F32}, n);
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  const bool is_wide = wide({gradient, m}) && wide(updated);
  return dispatch_activation(gradient.dtype, [&]<class G>() {
    return with_weight<PlainWeight, SplitWeight>(updated, [&](auto weight) {
      return update<G>(lion, gradient, is_wide, weight, m.as<float>(), scalars, stream);
    });
  });
}

}  // namespace snug::cuda
