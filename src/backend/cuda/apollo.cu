// Computes APOLLO's moments of projected gradients, and the scales that they give (program/update_ops.h).
#include "backend/apollo_scalars.h"
#include "backend/cuda/device.cuh"
#include "backend/update_operands.h"

namespace snug::cuda {
namespace {

// Takes a warp for each row.
__global__ void __launch_bounds__(kThreads)
    projected_moments_kernel(const float* low, int64_t rows, int64_t cols, float* m, float* v, float* squares,
                             const StepScalars* scalars, ProjectedMomentsScalars s) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const float factor = scalars->factor;
  const bool finite = scalars->finite != 0.0f;
  float steps = 0, all = 0;
#pragma unroll 4
  for (int64_t i = row * cols + threadIdx.x % 32; i < (row + 1) * cols; i += 32) {
    const float x = low[i] * factor;
    all += x * x;
    if (!finite) continue;
    const float first = fmaf(s.keep1, m[i], s.share1 * x), second = fmaf(s.keep2, v[i], s.share2 * x * x);
    m[i] = first;
    v[i] = second;
    const float step = first / (sqrtf(second) + s.epsilon);
    steps += step * step;
  }
  steps = warp_sum(steps);
  all = warp_sum(all);
  if (threadIdx.x % 32 != 0) return;
  squares[row] = steps;
  squares[rows + row] = all;
}

struct ChannelScalesBody {
  const float* squares;
  int64_t cols;
  float* scales;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const int64_t of = cols == 1 ? 0 : i + k;
      scales[i + k] = sqrtf(squares[of]) / (sqrtf(squares[cols + of]) + kLeastProjection);
    }
  }
};

__global__ void growth_limit_kernel(const float* square, float* last, float* factor, const StepScalars* scalars,
                                    float scale) {
  const float norm = sqrtf(*square), grown = norm / (*last + kLeastProjection);
  const float over = *last == 0.0f ? 1.0f : fmaxf(kMostGrowth, grown) / kMostGrowth;
  if (scalars->finite != 0.0f) *last = norm / over;
  *factor = scale / over;
}

}  // namespace

Launch bind_projected_moments(const ProjectedMoments& moments, Operands operands, cudaStream_t stream) {
  const ProjectedMomentsOperands of = projected_moments_operands(operands);
  return [=, s = ProjectedMomentsScalars(moments)](const RuntimeScalars&) {
    projected_moments_kernel<<<blocks_of(of.low.rows(), kThreads / 32), kThreads, 0, stream>>>(
        of.low.as<float>(), of.low.rows(), of.low.cols(), of.m, of.v, of.squares, of.scalars, s);
    check_launch("projected_moments");
  };
}

Launch bind_channel_scales(Operands operands, cudaStream_t stream) {
  const ChannelScalesOperands of = channel_scales_operands(operands);
  return [=](const RuntimeScalars&) {
    launch_elements(stream, Extent(1, of.scales.count()), false,
                    ChannelScalesBody{of.squares.as<float>(), of.squares.cols(), of.scales.as<float>()});
  };
}

Launch bind_growth_limit(const GrowthLimit& limit, Operands operands, cudaStream_t stream) {
  const GrowthLimitOperands of = growth_limit_operands(operands);
  return [=](const RuntimeScalars& runtime) {
    growth_limit_kernel<<<1, 1, 0, stream>>>(of.square, of.last, of.factor, of.scalars, update_scale(limit, runtime));
    check_launch("growth_limit");
  };
}

}  // namespace snug::cuda
