// Computes APOLLO's moments of projected gradients, and the scales that they give (program/update_ops.h).
#include "backend/apollo_scalars.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/update_operands.h"

namespace snug::cpu {

Launch bind_projected_moments(const ProjectedMoments& moments, Operands operands) {
  const ProjectedMomentsOperands of = projected_moments_operands(operands);
  return [=, s = ProjectedMomentsScalars(moments), values = of.low.as<float>(), scalars = of.scalars,
          squares = of.squares](const RuntimeScalars&) {
    const int64_t count = of.low.rows(), width = of.low.cols();
    const float factor = scalars->factor;
    share_rows(count, width, [&](int64_t row) {
      const float* const r = values + row * width;
      float *const first = of.m + row * width, *const second = of.v + row * width;
      squares[count + row] = sum(width, [=](int64_t j) { return (r[j] * factor) * (r[j] * factor); });
      squares[row] = scalars->finite == 0.0f ? 0.0f : sum(width, [=](int64_t j) {
        const float x = r[j] * factor;
        first[j] = std::fma(s.keep1, first[j], s.share1 * x);
        second[j] = std::fma(s.keep2, second[j], s.share2 * x * x);
        const float step = first[j] / (std::sqrt(second[j]) + s.epsilon);
        return step * step;
      });
    });
  };
}

Launch bind_channel_scales(Operands operands) {
  const ChannelScalesOperands of = channel_scales_operands(operands);
  return [=, steps = of.squares.as<float>(), to = of.scales.as<float>()](const RuntimeScalars&) {
    const int64_t cols = of.squares.cols();
    share_runs(Extent(1, of.scales.count()), [=](int64_t, int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) {
        const int64_t from = cols == 1 ? 0 : i;
        to[i] = std::sqrt(steps[from]) / (std::sqrt(steps[cols + from]) + kLeastProjection);
      }
    });
  };
}

Launch bind_growth_limit(const GrowthLimit& limit, Operands operands) {
  const GrowthLimitOperands of = growth_limit_operands(operands);
  return [=](const RuntimeScalars& runtime) {
    const float norm = std::sqrt(*of.square), grown = norm / (*of.last + kLeastProjection);
    const float over = *of.last == 0.0f ? 1.0f : std::max(kMostGrowth, grown) / kMostGrowth;
    if (of.scalars->finite != 0.0f) *of.last = norm / over;
    *of.factor = update_scale(limit, runtime) / over;
  };
}

}  // namespace snug::cpu
