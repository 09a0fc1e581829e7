// Computes schedule-free AdamW and its average, element by element with the operations and roundings of
// cpu/schedule_free.cpp, so that both give equal bits.
#include "backend/cuda/adamw.cuh"
#include "backend/schedule_free_scalars.h"

namespace snug::cuda {
namespace {

// Updates N elements in each thread.
template <int N, class Weight, class G>
__global__ void __launch_bounds__(kThreads)
    schedule_free_kernel(ScheduleFreeScalars s, const G* g, int64_t n, const StepScalars* step_scalars, Weight weight,
                         float* differences, float* v) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  const float factor = step_scalars->factor, finite = step_scalars->finite;
  Raw<G, N> raw_gradient;
  raw_gradient.fetch(g + i);
  Raw<float, N> raw_differences, raw_squares;
  raw_differences.fetch(differences + i);
  raw_squares.fetch(v + i);
  const auto weights = weight.template fetch<N>(i);
  Pack<float, N> y = weights.floats(), difference = raw_differences.floats(), square = raw_squares.floats();
  const Pack<float, N> gradient = raw_gradient.floats();
#pragma unroll
  for (int k = 0; k < N; k++) {
    const float x = gradient[k] * factor;
    square[k] = fmaf(s.square_share * x, x, square[k] * s.square_keep);
    const float change = fmaf(s.decay, y[k], x / (sqrtf(square[k]) / s.root_correction + s.epsilon));
    y[k] = fmaf(s.rate, change, fmaf(s.share, difference[k], y[k]));
    difference[k] = fmaf(s.difference_rate, change, difference[k] * s.difference_keep);
  }
  if (finite == 0.0f) return;  // only here, as the compiler would otherwise request nothing before it
  weight.template store<N>(i, y);
  save<N>(differences + i, difference);
  save<N>(v + i, square);
}

template <int N, class Weight>
__global__ void __launch_bounds__(kThreads)
    average_kernel(float factor, const float* differences, int64_t n, Weight weight) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  Raw<float, N> raw;
  raw.fetch(differences + i);
  Pack<float, N> w = weight.template fetch<N>(i).floats();
  const Pack<float, N> difference = raw.floats();
#pragma unroll
  for (int k = 0; k < N; k++) w[k] = fmaf(factor, difference[k], w[k]);
  weight.template store<N>(i, w);
}

template <class G, class Weight>
Launch update(const ScheduleFreeAdamW& adamw, const TensorView& gradient, bool is_wide, Weight weight,
              float* difference, float* v, const StepScalars* scalars, cudaStream_t stream) {
  return dispatch_wide(is_wide, [&]<int N>() -> Launch {
    return [=, g = gradient.as<G>(), n = gradient.count()](const RuntimeScalars& runtime) {
      if (n == 0) return;
      schedule_free_kernel<N><<<blocks_of(n, N * kThreads), kThreads, 0, stream>>>(
          ScheduleFreeScalars(adamw, runtime), g, n, scalars, weight, difference, v);
      check_launch("schedule_free_adamw");
    };
  });
}

template <class Weight>
Launch to_average(const ScheduleFreeAverage& average, const TensorView& difference, bool is_wide, Weight weight,
                  cudaStream_t stream) {
  return dispatch_wide(is_wide, [&]<int N>() -> Launch {
    return [=, factor = average_factor(average), d = difference.as<float>(),
            n = difference.count()](const RuntimeScalars&) {
      if (n == 0) return;
      average_kernel<N><<<blocks_of(n, N * kThreads), kThreads, 0, stream>>>(factor, d, n, weight);
      check_launch("schedule_free_average");
    };
  });
}

}  // namespace

Launch bind_schedule_free_adamw(const ScheduleFreeAdamW& adamw, Operands operands, cudaStream_t stream) {
  const TensorView gradient = operands.dense("g", kActivation);
  const int64_t n = gradient.count();
  const UpdatedWeight updated = updated_weight(operands, adamw.split, n);
  const TensorView difference = operands.vector("d", {DType::F32}, n), v = operands.vector("v", {DType::F32}, n);
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  const bool is_wide = wide({gradient, difference, v}) && wide(updated);
  return dispatch_activation(gradient.dtype, [&]<class G>() {
    return with_weight<PlainWeight, SplitWeight>(updated, [&](auto weight) {
      return update<G>(adamw, gradient, is_wide, weight, difference.as<float>(), v.as<float>(), scalars, stream);
    });
  });
}

Launch bind_schedule_free_average(const ScheduleFreeAverage& average, Operands operands, cudaStream_t stream) {
  const TensorView difference = operands.dense("d", {DType::F32});
  const UpdatedWeight updated = updated_weight(operands, average.split, difference.count());
  operands.done();
  const bool is_wide = wide({difference}) && wide(updated);
  return with_weight<PlainWeight, SplitWeight>(
      updated, [&](auto weight) { return to_average(average, difference, is_wide, weight, stream); });
}

}  // namespace snug::cuda
