// Computes APOLLO's moments of projected gradients, and the scales that they give (program/update_ops.h).
#include "backend/apollo_scalars.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/update_operands.h"

namespace snug::cpu {

Launch bind_projected_moments(const ProjectedMoments& moments, Operands operands) {
  const TensorView low = operands.dense("low", {DType::F32});
  const int64_t count = low.rows(), width = low.cols();
  float* const m = operands.vector("m", {DType::F32}, low.count()).as<float>();
  float* const v = operands.vector("v", {DType::F32}, low.count()).as<float>();
  float* const squares = operands.vector("squares", {DType::F32}, 2 * count).as<float>();
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return [=, s = ProjectedMomentsScalars(moments), values = low.as<float>()](const RuntimeScalars&) {
    const float factor = scalars->factor;
    share_rows(count, width, [&](int64_t row) {
      const float* const r = values + row * width;
      float *const first = m + row * width, *const second = v + row * width;
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
  const float* const square = operands.vector("square", {DType::F32}, 1).as<float>();
  float* const last = operands.vector("last", {DType::F32}, 1).as<float>();
  float* const factor = operands.vector("factor", {DType::F32}, 1).as<float>();
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return [=](const RuntimeScalars& runtime) {
    const float norm = std::sqrt(*square), grown = norm / (*last + kLeastProjection);
    const float over = *last == 0.0f ? 1.0f : std::max(kMostGrowth, grown) / kMostGrowth;
    if (scalars->finite != 0.0f) *last = norm / over;
    *factor = update_scale(limit, runtime) / over;
  };
}

}  // namespace snug::cpu
