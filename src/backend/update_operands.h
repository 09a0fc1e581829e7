// Takes the operands of optimizers' ops: of the weights that they change, and of what whole matrices are scaled by.
#pragma once

#include "backend/operands.h"
#include "tensor/step_scalars.h"
#include "tensor/view.h"

namespace snug {

struct UpdatedWeight {
  TensorView weight;  // "w": fp32, or bf16 where it is split
  TensorView lo;      // "lo": then the bits that complete it
  bool split = false;
};

// Takes what all updates read last.
const StepScalars* take_step_scalars(Operands& operands);

// Holds a gradient and the scales of its rows and columns: null where they are not there.
struct ScaledOperands {
  TensorView g, of_columns;
  const float *row_scales = nullptr, *column_scales = nullptr;
};
ScaledOperands scaled_operands(Operands& operands, bool rows, bool columns);

// Hold all operands of an op.
struct FactoredMeansOperands {
  TensorView g, rows, columns;
  const StepScalars* scalars;
};
FactoredMeansOperands factored_means_operands(Operands& operands);

struct FactoredScalesOperands {
  TensorView rows, columns;
  const float* mean;
  float *row_scales, *column_scales;
};
FactoredScalesOperands factored_scales_operands(Operands& operands);

struct ProjectedMomentsOperands {
  TensorView low;
  float *m, *v, *squares;
  const StepScalars* scalars;
};
ProjectedMomentsOperands projected_moments_operands(Operands& operands);

struct ChannelScalesOperands {
  TensorView squares, scales;
};
ChannelScalesOperands channel_scales_operands(Operands& operands);

struct GrowthLimitOperands {
  const float* square;
  float *last, *factor;
  const StepScalars* scalars;
};
GrowthLimitOperands growth_limit_operands(Operands& operands);

// Takes `count` weights, as numbers of 32 bits in one operand or, split, in two (backend/master.h).
UpdatedWeight updated_weight(Operands& operands, bool split, int64_t count);

// Returns what `use` returns for them as a backend's kernels read and write them: Plain{w} or Split{w, lo}.
template <class Plain, class Split, class Use>
auto with_weight(const UpdatedWeight& of, const Use& use) {
  if (of.split) return use(Split{of.weight.as<BFloat16>(), of.lo.as<int16_t>()});
  return use(Plain{of.weight.as<float>()});
}

}  // namespace snug
